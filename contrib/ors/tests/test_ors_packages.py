"""ors:URL against servers of both SDKs of the standard, each in an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from contrib.check import run_checks
from contrib.ors.tests.test_ors import play, says
from forge_env import Outcome, UserError, make
from tests.helpers.own_environment import python_with
from tests.helpers.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGES = ("ors-sdk==0.1.0", "openreward==0.1.167")
SERVER = Path(__file__).with_name("sdk_server.py")


@pytest.fixture(params=PACKAGES)
def process(request: pytest.FixtureRequest) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with serving(request.param) as served:
        yield served


@contextlib.contextmanager
def serving(package: str, *names: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL and the process of a server of environments; all of them by default."""
    python, port = python_with(package), free_ports(1)[0]
    command = [str(python), str(SERVER), str(port), *names]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None
                time.sleep(0.1)
        yield f"ors:{url}", process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("environment", ["sums", "guess", "notes"])
async def test_the_checks_pass(process: tuple[str, subprocess.Popen[bytes]], environment: str) -> None:
    report = await run_checks(make(process[0], environment=environment), tasks=4, seconds=240)
    assert [row for row in report.rows if row.ok is False or row.unfinished] == []


def test_what_compares_episodes_is_refused(
    process: tuple[str, subprocess.Popen[bytes]], request: pytest.FixtureRequest
) -> None:
    is_known = "openreward" in request.node.callspec.params["process"]
    with pytest.raises(UserError, match="scores the episodes of a group") if is_known else contextlib.nullcontext():
        assert make(process[0], environment="compared").tasks("train", count=1)


@pytest.mark.parametrize("package", PACKAGES)
async def test_rewards_are_those_that_the_packages_own_client_reads(package: str) -> None:
    """Their sum; a fault if the last one is null, as which the server sends NaN and None alike."""
    with serving(package, "Planned") as (url, _):
        client = [str(python_with(package)), str(SERVER.with_name("sdk_client.py")), url.removeprefix("ors:")]
        done = subprocess.run(client, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        theirs = json.loads(done.stdout.splitlines()[-1])
        async with make(url) as factory:
            tasks = sorted(factory.tasks("train", count=60), key=lambda task: int(task.metadata["index"]))
            episodes = [await play(factory, says([("pull", {})]), task) for task in tasks]
    expected = [None if rewards[-1] is None else pytest.approx(sum(filter(None, rewards))) for rewards in theirs]
    assert [episode.reward for episode in episodes] == expected, [e.error for e in episodes]
    assert len(theirs) == 60 and 5 < expected.count(None) < 50


async def test_episodes_have_the_rewards_of_the_server(process: tuple[str, subprocess.Popen[bytes]]) -> None:
    url, _ = process
    async with make(url, environment="sums") as factory:
        for task in factory.tasks("test", count=3):
            episode = await play(factory, says([("submit", {"value": task.metadata["task_spec"]["number"] + 7})]), task)
            assert (episode.outcome, episode.reward, episode.success) == (Outcome.SCORED, 1.0, True), episode.error
            assert episode.messages[0]["content"].endswith("+ 7?\nSubmit the sum.")
    async with make(url, environment="guess") as factory:
        task = factory.tasks("train", count=1)[0]
        number = task.metadata["task_spec"]["number"]
        episode = await play(factory, says([("guess", {"value": 126})], [("guess", {"value": number})]), task)
        assert episode.reward == pytest.approx(0.99) and not episode.success, episode.error
        assert episode.info["ors_result"] == {"metadata": [{"tries": 2}]}
        invalid = await play(factory, says([("guess", {"value": "x"})], "No."))
        assert "validation error" in invalid.messages[2]["content"] and invalid.reward == 0.0
    async with make(url, environment="faulty") as factory:
        raised = await play(factory, says([("fail", {})]))
        assert (raised.outcome, raised.reward) == (Outcome.ENV_FAULT, None) and "the tool is broken" in raised.error
        long = await play(factory, says([("long", {"value": 20_000})], "Read."))
        assert long.messages[2]["content"] == (" \u2028\u0085" * 20_000)[:20_000]
