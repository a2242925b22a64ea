"""What `forge-env doctor` says of workspaces and images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from forge_env.cli.main import main
from sandboxes.workspaces.doctor import parts

PARTS = [
    *("sandbox, namespace", "sandbox, docker", "workspaces, namespace", "workspaces, docker"),
    *("cache of images", "images of registries", "layers in zstd", "Dockerfiles"),
]


def test_each_part_is_tried_and_what_is_missing_has_its_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setenv("FORGE_ENV_IMAGES", "/proc/images")
    code = main(["doctor", "--json"])
    told = json.loads(capfd.readouterr().out)
    found = {part["part"]: part for part in told["parts"]}
    assert list(found) == PARTS and code == (not told["ok"])
    assert all(part["notes"] for part in found.values() if part["ready"] != "yes")
    assert "start one, or name it with DOCKER_HOST" in found["workspaces, docker"]["notes"][0]
    assert found["cache of images"]["ready"] == "no"


def test_info_says_what_backends_enforce(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "info", "--json"]) == 0
    workspaces = json.loads(capfd.readouterr().out)["workspaces"]
    assert workspaces.keys() == {"namespace", "docker"}
    assert "Docker" in workspaces["docker"].get("unavailable", "Docker")
    if "unavailable" in workspaces["namespace"]:
        pytest.skip(workspaces["namespace"]["unavailable"])
    assert set(workspaces["namespace"]["network_modes"]) == {"none", "loopback", "allowlist"}
    assert main(["sandbox", "info"]) == 0
    text = capfd.readouterr().out
    assert "disk_in_memory" in text and "workspaces, docker: " in " ".join(text.split())


async def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_ENV_IMAGES", "/proc/images")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "dxf", None)
    found = {name: (ready, note) for name, ready, note in await parts()}
    for name in ("images of registries", "layers in zstd"):
        ready, note = found[name]
        assert ready == "no" and "pip install 'forge-env[images]'" in note
