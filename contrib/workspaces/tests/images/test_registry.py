"""Images of a registry on the loopback address: pulled, resumed, refused."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dxf")

from contrib.workspaces.contract import Network, NetworkMode, UnpackedImage, WorkspaceLimits
from contrib.workspaces.images.dockerfile import build
from contrib.workspaces.images.reference import parse_reference, short_name
from contrib.workspaces.images.registry import registry_image
from contrib.workspaces.images.resolve import find_image, pull_image
from contrib.workspaces.images.store import stored_images
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.image_files import ImageFiles, digest_of, entry, layer, write_archive
from contrib.workspaces.tests.image_registry import PASSWORD, USER, Registry
from forge_env.core.errors import UserError
from tests.helpers.ports import free_ports

NOISE = random.Random(0).randbytes(3 * 2**20)
IMAGE = ImageFiles([layer(entry("one", b"1"), entry("noise", NOISE)), layer(entry(".wh.one"), entry("two", b"2"))])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("contrib.workspaces.images.registry._FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nothing goes through it


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


def log_in(folder: Path, registry: Registry, user: str, *, given: str = "") -> None:
    """Write what `docker login` does; or what is no password."""
    given = given or base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    (folder / "docker").mkdir(exist_ok=True)
    (folder / "docker/config.json").write_text(json.dumps({"auths": {registry.address: {"auth": given}}}))


def names_in(image: UnpackedImage) -> list[str]:
    return sorted(path.name for path in image.root.iterdir())


def test_an_image_is_pulled_once_and_found_by_its_name(cache: Path, registry: Registry) -> None:
    name = registry.add("some/where", "1", IMAGE)
    image = pull_image(name)
    assert names_in(image) == ["noise", "two"] and (image.root / "noise").read_bytes() == NOISE
    assert find_image(name) == image and stored_images()[0].names == (name,)
    blobs = [path for path in registry.requests if "/blobs/" in path]
    pull_image(name)
    assert len(blobs) == 3 and max(registry.requests[path] for path in blobs[1:]) == 1, "layers are fetched once"
    other = registry.add("other", "latest", ImageFiles([*IMAGE.layers, layer(entry("three"))]))
    assert names_in(pull_image(other.removesuffix(":latest"))) == ["noise", "three", "two"]
    assert sum("/blobs/" in path for path in registry.requests) == 5, "one config and one layer more"


async def test_only_a_build_with_a_network_pulls_its_image(cache: Path, registry: Registry, tmp_path: Path) -> None:
    name = registry.add("some/where", "1", IMAGE)
    tool = registry.add("tool", "2", ImageFiles([layer(entry("tool", b"2"))]))
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\nCOPY --from={tool} /tool /bin/\n")
    limits = WorkspaceLimits(memory_bytes=2**28, disk_bytes=2**26)
    async with open_workspaces() as workspaces:
        with pytest.raises(UserError, match="there is no image .* on this machine: pull it"):
            await build(workspaces, tmp_path, limits=limits, timeout_s=60)
        assert not registry.requests
        network = Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("*",))
        built = await build(workspaces, tmp_path, limits=limits, timeout_s=60, network=network)
        workspace = await workspaces.open(built.files, limits=limits)
        assert await workspace.get("/bin/tool") == b"2"
        await workspace.close()
        await built.close()
    assert names_in(find_image(name)) == ["noise", "two"]


@pytest.mark.parametrize("kind", ["plain", "zstd", "zstd_frames"])
def test_layers_that_are_not_gzip(cache: Path, registry: Registry, kind: str) -> None:
    zstandard = pytest.importorskip("zstandard")

    def frames(data: bytes) -> bytes:
        skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
        return skipped.join(zstandard.compress(data[at : at + 99_999]) for at in range(0, len(data), 99_999))

    compress = {"plain": bytes, "zstd": zstandard.compress, "zstd_frames": frames}[kind]
    image = pull_image(registry.add("a", "1", ImageFiles(IMAGE.layers, compress=compress)))
    assert names_in(image) == ["noise", "two"] and (image.root / "noise").read_bytes() == NOISE


def test_the_image_for_this_machine_of_an_index(cache: Path, registry: Registry) -> None:
    name = registry.add("a", "1", ImageFiles([layer(entry("foreign"))], architecture="s390x"), IMAGE)
    image = pull_image(name)
    assert names_in(image) == ["noise", "two"]
    digest = registry.tags["a", "1"]
    assert pull_image(f"{registry.address}/a@{digest}") == image == find_image(f"{registry.address}/a@{digest}")
    foreign = [ImageFiles([layer()], architecture=name) for name in ("s390x", "mips")]
    with pytest.raises(UserError, match=r"is for linux/mips, linux/s390x, but this machine is linux/"):
        pull_image(registry.add("b", "1", *foreign))


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_a_broken_connection_is_resumed(cache: Path, registry: Registry, ignores_ranges: bool) -> None:
    files = ImageFiles([layer(entry("noise", NOISE))], compress=bytes)
    name = registry.add("a", "1", files)
    registry.cuts, registry.ignores_ranges = [10**9, 10_000, 2 * 10**6, 0, 2_500_000], ignores_ranges
    assert (pull_image(name).root / "noise").read_bytes() == NOISE
    begun = [int(given[6:-1]) for given in registry.ranges]
    assert begun == sorted(begun) and 10**6 < begun[0] <= 2 * 10**6 and len(begun) >= 2


def test_a_registry_that_is_busy_is_asked_again_and_not_for_ever(cache: Path, registry: Registry) -> None:
    name = registry.add("a", "1", IMAGE)
    registry.refusals = [503, 429, 500]
    assert names_in(pull_image(name)) == ["noise", "two"]
    registry.refusals = [503] * 6
    with pytest.raises(UserError, match=r"cannot be had from the registry .*503 Service Unavailable, 6 tries"):
        pull_image(registry.add("a", "2", IMAGE))
    registry.refusals = [400]
    with pytest.raises(UserError, match=r"the registry 127.0.0.1:\d+ answers 400 Bad Request$"):
        pull_image(registry.add("a", "2", IMAGE))
    registry.refusals, registry.cuts = [], [10**9, *[100] * 20]
    with pytest.raises(UserError, match=r"the layer sha256:.* cannot be had .*6 tries.*whole layers are kept"):
        pull_image(registry.add("b", "1", ImageFiles([layer(entry("new", NOISE))])))
    assert len(list((cache / "layers").iterdir())) == 2, "nothing half is in the cache"


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_passwords(cache: Path, tmp_path: Path, auth: str) -> None:
    with Registry(auth) as registry:
        name = registry.add("a", "1", IMAGE)
        with pytest.raises(UserError, match=f"it is not there, or it needs `docker login {registry.address}`"):
            pull_image(name)
        for user, works in (("nobody", False), (USER, True)):
            log_in(tmp_path, registry, user)
            if works:
                assert names_in(pull_image(name)) == ["noise", "two"]
            else:
                with pytest.raises(UserError, match="docker login"):
                    pull_image(name)
        log_in(tmp_path, registry, USER, given="!")
        with pytest.raises(UserError, match=r"the passwords of .*config.json cannot be read"):
            pull_image(name)


def test_passwords_are_not_sent_in_the_clear_to_others(cache: Path, tmp_path: Path) -> None:
    with Registry("bearer") as registry:
        name = registry.add("a", "1", IMAGE)
        log_in(tmp_path, registry, USER)
        for realm in ("http://tokens.invalid/token", "ftp://127.0.0.1/token", "/token", ""):
            registry.realm = realm
            if not realm:
                assert names_in(pull_image(name)) == ["noise", "two"]
                continue
            with pytest.raises(UserError, match=f"sends for a token to '{realm}', which is not HTTPS"):
                pull_image(name)


def test_what_is_not_there_or_broken_is_one_sentence(cache: Path, registry: Registry) -> None:
    with pytest.raises(UserError, match=r"the image 127.*/a:1 is not in the registry 127.0.0.1:\d+$"):
        pull_image(f"{registry.address}/a:1")
    name = registry.add("a", "1", IMAGE)
    blobs = {digest for digest in registry.contents if digest not in registry.types}
    for digest in sorted(blobs):
        content = registry.contents[digest]
        assert isinstance(content, bytes)
        registry.contents[digest] = content[:-1] + bytes([content[-1] ^ 1])
        with pytest.raises(UserError, match=r"is broken: its content has the digest sha256:.*get it again"):
            pull_image(name)
        registry.contents[digest] = content
        shutil.rmtree(cache, ignore_errors=True)  # the other layers were whole, and would be kept
    manifest = registry.tags["a", "1"]
    registry.contents[manifest] = b"{}"
    with pytest.raises(UserError, match="is broken: its content has the digest"):
        pull_image(name)
    registry.contents[manifest] = b"x" * (5 * 2**20)
    with pytest.raises(UserError, match="a document of it has more than 4194304 bytes"):
        pull_image(name)
    (port,) = free_ports(1)
    with pytest.raises(UserError, match=r"cannot be had from the registry .*(Connection refused|refused)"):
        pull_image(f"127.0.0.1:{port}/a:1")
    assert not cache.exists(), "nothing was unpacked"


def test_a_layer_that_sends_more_than_it_says(cache: Path, registry: Registry) -> None:
    class Liar(ImageFiles):
        def blobs(self):  # type: ignore[no-untyped-def]
            descriptor, blobs = super().blobs()
            manifest = json.loads(blobs.pop(descriptor["digest"]))
            manifest["layers"][0]["size"] = 5
            other = ImageFiles([]).blobs()[0]
            data = json.dumps(manifest).encode()
            return {**other, "digest": digest_of(data)}, {**blobs, digest_of(data): data}

    with pytest.raises(UserError, match="it has more than the 5 bytes of its manifest"):
        pull_image(registry.add("a", "1", Liar([IMAGE.layers[0]])))


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("a/b", "docker.io/a/b:latest"),
        ("index.docker.io/a", "docker.io/library/a:latest"),
        ("ghcr.io/a/b:c.d-E", "ghcr.io/a/b:c.d-E"),
        ("localhost/a", "localhost/a:latest"),
        ("host:5000/a__b", "host:5000/a__b:latest"),
        (f"a@sha256:{'0' * 64}", f"docker.io/library/a@sha256:{'0' * 64}"),
        (f"a:1@sha256:{'0' * 64}", f"docker.io/library/a:1@sha256:{'0' * 64}"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
    ],
)
def test_names(name: str, full: str) -> None:
    reference = parse_reference(name)
    assert str(reference) == full and parse_reference(short_name(full)) == reference
    assert reference.is_loopback == (name.startswith(("localhost", "[::1]")))
    assert reference.host == ("registry-1.docker.io" if full.startswith("docker.io") else reference.registry)


@pytest.mark.parametrize(
    "name", ["", "A", "a/", "/a", "a:", "a::b", "a b", "a@sha256:12", "a/../b", "a" * 300, "ghcr.io/A"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UserError, match=r"is no name of an image: write \[REGISTRY/\]REPOSITORY"):
        parse_reference(name)


def test_an_archive_gives_the_names_of_its_tags(cache: Path, tmp_path: Path) -> None:
    image = pull_image(str(write_archive(tmp_path / "a.tar", {"mine:1": IMAGE})))
    assert find_image("mine:1") == find_image("docker.io/library/mine:1") == image
    changed = ImageFiles([layer(entry("new"))])
    again = pull_image(str(write_archive(tmp_path / "b.tar", {"mine:1": changed})), name="mine:1")
    assert find_image("mine:1") == again != image, "a name goes to the newer image"
    with pytest.raises(UserError, match=r"is no name of an image"):
        pull_image(str(tmp_path / "a.tar"), name="Not A Name")


def test_connections_end_with_the_block(cache: Path, registry: Registry) -> None:
    name = registry.add("a", "1", IMAGE)
    before = len(os.listdir("/proc/self/fd"))
    with registry_image(parse_reference(name)) as image:
        assert len(image.layers) == 2
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the server's end may still be open
