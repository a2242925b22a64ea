"""The allowlist of a workspace: only named hosts, only by the proxy, only at public addresses unless they are named."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from contrib.workspaces.contract import Network, NetworkMode, UnpackedImage
from contrib.workspaces.machines import proxy
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.proxy import Allowlist, Proxy
from contrib.workspaces.tests.machines.conftest import open_one
from forge_env.core.errors import UserError

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASK = "exec 3<>/dev/tcp/127.0.0.1/3128 && printf '{request}\\r\\n\\r\\n{after}' >&3 && cat <&3"


@pytest_asyncio.fixture(loop_scope="module")
async def port() -> AsyncIterator[int]:
    """A server on this machine that answers with the first line and the headers that it got."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"seen: " + head.replace(b"\r\n", b"|"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def allowlist(*hosts: str) -> Network:
    return Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=hosts)


async def test_only_what_is_allowed_is_reached(workspaces: Workspaces, small_image: UnpackedImage, port: int) -> None:
    async with open_one(
        workspaces, small_image, network=allowlist(f"127.0.0.1:{port}", f"localhost:{port}")
    ) as workspace:

        async def ask(request: str, after: str = "") -> str:
            return (await workspace.exec(["bash", "-c", ASK.format(request=request, after=after)])).stdout

        for _ in range(2):  # before and after a snapshot
            assert (await workspace.exec("echo $HTTPS_PROXY")).stdout == "http://127.0.0.1:3128\n"
            plain = await ask(f"GET http://127.0.0.1:{port}/a?b=c HTTP/1.1\\r\\nProxy-Authorization: secret\\r\\nA: b")
            assert "seen: GET /a?b=c HTTP/1.1|A: b|Connection: close||" in plain
            through = await ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1", "GET / HTTP/1.0\\r\\n\\r\\n")
            assert through.startswith("HTTP/1.1 200 Connection") and "seen: GET / HTTP/1.0||" in through
            assert "403 Forbidden" in await ask("CONNECT 127.0.0.1:1 HTTP/1.1")
            assert "not among the allowed hosts" in await ask("GET http://example.org/ HTTP/1.1")
            assert "only private addresses" in await ask(f"CONNECT localhost:{port} HTTP/1.1")
            for odd in (
                "GET / HTTP/1.1",
                "nonsense",
                "CONNECT x HTTP/1.1",
                "GET ftp://x/ HTTP/1.1",
                "CONNECT [::1 HTTP/1.1",
                r"GET http://a.org\\\\.b.org/ HTTP/1.1",
                "GET http://a..b.org\\033/ HTTP/1.1",
            ):
                assert "400 Bad Request" in await ask(odd), odd
            direct = await workspace.exec(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"])
            assert direct.exit_code != 0
            await (await workspace.snapshot()).close()


async def test_an_open_connection_ends_with_the_workspace(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        outside = server.getsockname()[1]
        server.setblocking(False)
        workspace = await workspaces.open(small_image, network=allowlist(f"127.0.0.1:{outside}"))
        command = ASK.format(request=f"CONNECT 127.0.0.1:{outside} HTTP/1.1", after="")
        task = asyncio.create_task(workspace.exec(["bash", "-c", command]))
        connection, _ = await asyncio.get_running_loop().sock_accept(server)
        with connection:
            connection.setblocking(False)
            await workspace.close()
            async with asyncio.timeout(30):
                assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
        await asyncio.gather(task, return_exceptions=True)  # it saw the end of its connection, or was killed


async def test_only_a_connection_that_is_idle_in_both_directions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_IDLE_S", 1.0)
    now, sent, is_sent = asyncio.get_running_loop().time, 0, False

    async def download(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent, is_sent
        end = now() + 1.5
        while now() < end:
            writer.write(b"x")
            sent += 1
            await asyncio.sleep(0.01)
        is_sent = True  # it stays open, so that only the proxy ends it

    server = await asyncio.start_server(download, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    listener = socket.create_server(("127.0.0.1", 0))
    inside = Proxy(Allowlist((host,)))
    await inside.start(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        writer.write(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(30):
            received = len(await reader.read())
        assert is_sent and received == sent
    finally:
        writer.close()
        await inside.close()
        server.close()


async def test_rules() -> None:
    rules = Allowlist(("example.org", "*.example.com", "Mixed.Example.net.:8443", "10.0.0.1:80"))
    for host, port, expected in (
        ("example.org", 443, True),
        ("EXAMPLE.org.", 80, True),
        ("example.org", 22, False),
        ("a.example.org", 443, False),
        ("a.b.example.com", 443, True),
        ("example.com", 443, False),
        ("badexample.com", 443, False),
        ("mixed.example.net", 8443, True),
        ("mixed.example.net", 443, False),
        ("10.0.0.1", 80, True),
        ("10.0.0.2", 80, False),
    ):
        assert rules.allows(host, port) is expected, (host, port)
    with pytest.raises(UserError):
        Allowlist(())
    for host in ("", "[::1]:80", "a b", "*:x", "*.", "a*b", "http://x", "x:0", "x:y", "x/y"):
        with pytest.raises(UserError):
            Allowlist((host,))
    with pytest.raises(UserError):
        Allowlist((), ("*",))


@pytest.mark.parametrize(
    ("hosts", "own", "host", "address", "expected"),
    [
        (("*",), (), "example.org", "93.184.216.34", True),
        (("*",), (), "example.org", "10.0.0.1", False),
        (("*",), (), "127.0.0.1", "127.0.0.1", False),
        (("*",), (), "169.254.169.254", "169.254.169.254", False),
        (("*",), (), "::ffff:127.0.0.1", "::ffff:127.0.0.1", False),
        (("*",), (), "a.org", "64:ff9b::a00:1", False),
        (("*",), (), "a.org", "2002:a00:1::", False),
        (("*",), ("10.0.0.1",), "10.0.0.1", "10.0.0.1", True),
        (("*",), ("10.0.0.1",), "example.org", "10.0.0.1", False),
        (("*",), ("*.corp.example",), "pypi.corp.example", "10.0.0.1", True),
        (("*",), ("*.corp.example:8080",), "pypi.corp.example", "10.0.0.1", False),
        (("10.0.0.1",), (), "10.0.0.1", "10.0.0.1", True),
        (("example.org",), (), "example.org", "192.168.0.1", False),
    ],
)
async def test_only_who_names_a_private_address_reaches_it(
    hosts: tuple[str, ...], own: tuple[str, ...], host: str, address: str, expected: bool
) -> None:
    allowlist = Allowlist(hosts, own)
    assert allowlist.allows(host, 80) and allowlist.leads_to(host, 80, address) is expected


async def test_a_public_address_of_this_machine_is_out_of_reach() -> None:
    """In a network of its own, which has such an address."""
    alone = ["unshare", "-rn", "sh", "-c"]
    prepare = "ip link set lo up && ip addr add 8.8.4.4/32 dev lo"
    if shutil.which("ip") is None or subprocess.run([*alone, prepare], capture_output=True).returncode:
        pytest.skip("a network of its own cannot be made")
    rules = "from contrib.workspaces.machines.proxy import Allowlist as A; rules = A(('*',))"
    asked = "print([rules.leads_to('a.org', 80, address) for address in ('8.8.4.4', '8.8.8.8')])"
    command = f'{prepare} && exec {sys.executable} -c "{rules}; {asked}"'
    done = subprocess.run([*alone, command], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, True]\n"


async def test_public_is_every_host_but_this_machine_unless_the_user_names_its_port(
    workspaces: Workspaces, small_image: UnpackedImage, port: int
) -> None:
    for own, reached in (((), False), ((f"127.0.0.1:{port}",), True)):
        network = Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("*",), own_hosts=own)
        async with open_one(workspaces, small_image, network=network) as workspace:
            direct = f"exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
            for _ in range(2):  # before and after a snapshot
                assert ("seen: GET /" in (await workspace.exec(["bash", "-c", direct])).stdout) is reached
                for host in ("127.0.0.1", "localhost", "127.1", "0.0.0.0", "[::1]"):
                    ask = ASK.format(request=f"GET http://{host}:80/ HTTP/1.1", after="")
                    assert "has only private addresses" in (await workspace.exec(["bash", "-c", ask])).stdout, host
                ask = ASK.format(request="GET http://a..b/ HTTP/1.1", after="")
                assert "a..b:80 cannot be reached" in (await workspace.exec(["bash", "-c", ask])).stdout
                await (await workspace.snapshot()).close()


async def test_plain_http_goes_through_the_users_cache_with_its_whole_address(
    workspaces: Workspaces, small_image: UnpackedImage, port: int
) -> None:
    mirrors = (("apt", f"http://127.0.0.1:{port}"), ("pypi", "http://packages.example.org:3141/index"))
    network = Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("*",), mirrors=mirrors)
    async with open_one(workspaces, small_image, network=network) as workspace:
        for request, answer in (
            ("GET http://packages.invalid/a?b=c HTTP/1.1", "seen: GET http://packages.invalid/a?b=c HTTP/1.1|"),
            ("GET http://127.0.0.1/a HTTP/1.1", "has only private addresses"),
            ("GET http://packages.invalid:22/a HTTP/1.1", "not among the allowed hosts"),
            (f"CONNECT 127.0.0.1:{port} HTTP/1.1", "not among the allowed hosts"),
        ):
            asked = await workspace.exec(["bash", "-c", ASK.format(request=request, after="")])
            assert answer in asked.stdout, asked.stdout
        names = "$PIP_INDEX_URL $UV_DEFAULT_INDEX $PIP_TRUSTED_HOST"
        index = "http://packages.example.org:3141/index"
        assert (await workspace.exec(f"echo {names}")).stdout == f"{index} {index} packages.example.org:3141\n"


async def test_the_port_of_the_proxy_is_taken(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    network = Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("example.org",), listeners=(3128,))
    with pytest.raises(UserError, match="3128 is the proxy's"):
        await workspaces.open(small_image, network=network)
