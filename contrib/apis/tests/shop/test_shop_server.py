"""The content of a shop, and the life of a server: it is there when asked, and leaves nothing however it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrib.apis.shop import server, session_folder
from contrib.apis.shop.catalogue import CATALOGUE, PEOPLE, PRODUCTS, address, email
from contrib.apis.shop.content import Focus, make_shop
from contrib.apis.shop.database import memory_database, read_state
from contrib.apis.shop.server import ShopServer
from forge_env.core.errors import ServiceError, UserError

SHOP = make_shop("tests")


# ---- data ----


@given(st.text(max_size=20), st.sampled_from(["placed", "shipped", "delivered", None]))
@settings(max_examples=60, deadline=None)
def test_a_shop_is_whole_and_the_same_every_time(seed: str, status: str | None) -> None:
    focus = Focus(customer=3, product=7, order=4242, status=status, stock=20)
    shop = make_shop(seed, focus)
    assert shop == make_shop(seed, focus)
    with memory_database(shop) as db:
        state = read_state(db)
    assert (shop.customers[0][2], shop.products[0][1]) == (email(3), PRODUCTS[7][0])
    mine = [order for order in shop.orders if order[1] == shop.customers[0][0]]
    latest = max(mine, key=lambda order: order[3])
    assert latest[0] == 4242 and sum(order[3] == latest[3] for order in mine) == 1
    assert f"4242/{shop.products[0][0]}" in state["order_items"]
    for order in state["orders"].values():
        assert order["placed_on"] <= (order["delivered_on"] or order["placed_on"]) <= shop.today
        assert (order["delivered_on"] is not None) == (order["status"] == "delivered")
        assert str(order["customer_id"]) in state["customers"]


def test_the_catalogue_has_no_doubles() -> None:
    assert len({email(i) for i in range(len(PEOPLE))}) == len(PEOPLE) == 576
    assert len({name for name, _ in PRODUCTS}) == len(PRODUCTS) == 5 * len(CATALOGUE)
    assert len({address(i) for i in range(6400)}) == 6400


# ---- the life of a server ----


def pid_is_gone(pid: int) -> bool:
    """Wait for the end of any process, for 60 s at most."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


async def test_it_stops_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await (await asyncio.create_subprocess_exec("true")).wait()  # what asyncio opens once for them is open now
    gc.collect()  # what earlier tests left to it is closed now, and not in between
    descriptors = len(os.listdir("/proc/self/fd"))
    async with ShopServer() as started:
        token = started.open(SHOP)
        async with httpx.AsyncClient(base_url=started.base_url) as http:
            assert (await http.get("/shop", headers={"Authorization": f"Bearer {token}"})).is_success
        pid = started._process.pid
    assert pid_is_gone(pid) and list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(httpx.ConnectError):
        httpx.get(started.base_url)


OWNER = """
import asyncio, sys
from contrib.apis.shop.content import make_shop
from contrib.apis.shop.server import ShopServer
async def main():
    async with ShopServer() as server:
        server.open(make_shop("x"))
        print(server._process.pid, server._folder.path, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def test_it_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environ) as owner:
        assert owner.stdout is not None
        pid, path = owner.stdout.readline().split()
        assert Path(path).is_dir()
        owner.send_signal(signal.SIGKILL)
    assert pid_is_gone(int(pid)) and list(tmp_path.iterdir()) == []


def test_folders_of_the_dead_are_removed_by_the_next_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive = session_folder.SessionFolder()
    prefix = session_folder._PREFIX
    dead, young, foreign = (tmp_path / name for name in (f"{prefix}dead", f"{prefix}young", "other"))
    for path in (dead, young, foreign):
        path.mkdir()
        (path / "file").touch()
    for path in (alive.path, dead, foreign):
        os.utime(path, (time.time() - 100,) * 2)
    new = session_folder.SessionFolder()
    assert set(tmp_path.iterdir()) == {alive.path, young, foreign, new.path}
    alive.remove()
    new.remove()


async def test_a_dead_server_is_no_users_mistake() -> None:
    async with ShopServer() as started:
        started._process.kill()
        await started._process.wait()
        with pytest.raises(ServiceError, match=r"died of SIGKILL \(signal 9\)"):
            started.open(SHOP)


async def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patch, pytest.raises(ServiceError, match="ended with exit code 1 at its start"):
        patch.setattr(sys, "executable", "/bin/false")
        await ShopServer().__aenter__()
    with monkeypatch.context() as patch, pytest.raises(ServiceError, match=r"did not start within 0\.01 s"):
        patch.setattr(server, "_START_SECONDS", 0.01)
        await ShopServer().__aenter__()
    assert list(tmp_path.iterdir()) == []


async def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'forge-env\[tools\]'"):
        await ShopServer().__aenter__()
