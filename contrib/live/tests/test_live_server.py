"""The server of a run over its real socket: who may look, who may act, and every refusal in a sentence."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contrib.live.client import FILE, MOST_BYTES, LiveClient
from contrib.live.server import ACTIONS_FILE, LiveServer
from contrib.viewer.live_run import LiveRun
from forge_env.core.errors import UserError
from forge_env.utils.yaml_text import read_yaml
from trainers import grpo
from trainers.config import SHORT_OPTIONS
from trainers.run.run import Run
from trainers.run.run_record import add_fact, write_facts
from trainers.run.training_run import TrainingRun
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan


def plan_of(*options: str) -> Any:
    return make_plan(parse(grpo.Config, ["--env", "math", "--steps", "20", *options], SHORT_OPTIONS), grpo.GRPO)


class Served:
    """A run without processes, which takes step 3 of 20."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.said = folder, list[str]()
        self.plan = plan_of(*options)
        self.caller = TrainingRun()
        self.controls = self.caller.controls
        self.controls.steps, self.controls.steps_begun = 20, 3
        self.controls.queue = lambda: {"steps_done": 2}
        self.rollouts = SimpleNamespace(envs={}, in_flight={}, plan=self.plan, limits=None, requeue=self.requeue)
        console = SimpleNamespace(seconds=lambda: 1.5, under_way=list)
        self.record = SimpleNamespace(
            folder=folder, console=console, say=self.said.append, add_fact=lambda *fact: add_fact(folder, *fact)
        )
        self.weights, self.services = SimpleNamespace(in_engines=2), dict[str, Any]()
        write_facts(folder, "grpo", asdict(self.plan.config), {})

    def change(self, plan: Any) -> None:
        Run.change(self, plan)  # type: ignore[arg-type]

    def requeue(self, group: str) -> None:
        self.said.append(f"requeued {group}")

    async def ask(self, action: str, value: str = "", *, client: LiveClient | None = None) -> str:
        """What an action leads to, or why it is refused; by a client of its own, unless one is given."""

        def act() -> str:
            try:
                if client is not None:
                    return client.act(action, value)
                with LiveClient(self.folder, "a test") as own:
                    return own.act(action, value)
            except UserError as error:
                return f"refused: {error}"

        return await asyncio.to_thread(act)


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Served]]:
    servers: list[LiveServer] = []

    def begin(*options: str) -> Served:
        run = Served(tmp_path, *options)
        servers.append(LiveServer(tmp_path))
        servers[-1].begin(run)  # type: ignore[arg-type]
        return run

    yield begin
    for server in servers:
        server.stop()
        server.stop()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait({task}, timeout=10)
    assert not (tmp_path / FILE).exists()


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ACTIONS_FILE).read_text().splitlines()]


async def test_actions_are_done_and_recorded(serve: Callable[..., Served], tmp_path: Path) -> None:
    run = serve()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert await run.ask("pause") == "pauses before the next step; groups under way are finished"
    assert run.controls.is_paused
    assert await run.ask("pause") == "refused: the run is paused already"
    assert await run.ask("resume") == "goes on" and not run.controls.is_paused
    assert (await run.ask("evaluate")).startswith("evaluates the weights") and run.controls.evaluates
    run.rollouts.in_flight["train/4"] = SimpleNamespace(since=0.0, version=1)
    assert (await run.ask("requeue", "train/4/2")).startswith("train/4 is played again")
    assert "requeued train/4" in run.said
    assert (await run.ask("stop")).startswith("stops after the step") and run.caller.is_stopping
    done = entries(tmp_path)
    assert [each["action"] for each in done] == ["pause", "resume", "evaluate", "requeue", "stop"]
    assert all(each["who"] == f"a test, process {os.getpid()}" and each["step"] == 2 for each in done)
    assert "a test" in run.said[0] and "pause" in run.said[0]


async def test_limits_change_for_the_run_and_for_its_resumption(serve: Callable[..., Served], tmp_path: Path) -> None:
    run = serve()
    before = run.plan.config.env.max_turns
    assert await run.ask("set", "env.max_turns=1") == (
        f"env.max_turns is 1 of groups that begin from now on, and was {before}; later checkpoints have it too"
    )
    assert run.rollouts.limits.max_turns == 1 and run.rollouts.plan is run.plan
    assert await run.ask("set", "training.steps=12") == (
        "training.steps is 12 from the next step on, and was 20; later checkpoints have it too"
    )
    assert run.controls.steps == run.plan.steps == 12
    config = read_yaml((tmp_path / "config.yaml").read_text())
    assert (config["env"]["max_turns"], config["training"]["steps"]) == (1, 12)
    assert json.loads((tmp_path / "run.json").read_text())["steps"] == 12


@pytest.mark.parametrize(
    ("action", "value", "sentence"),
    [
        ("jump", "", "there is no action 'jump'; the actions are pause, resume, stop, evaluate, set, requeue"),
        ("pause", "now", "pause takes no value, and 'now' was given"),
        ("set", "", "set needs a limit and its value"),
        ("set", "env.max_turn=3", "env.max_turn cannot change while a run goes on; Did you mean env.max_turns?"),
        ("set", "env.max_turns=many", "env.max_turns is 'many'; it must be a whole number"),
        ("set", "env.max_turns=-1", "env.max_turns is -1; it must be at least 1"),
        ("set", "env.episode_seconds=0", "env.episode_seconds is 0; it must be above 0"),
        ("set", "training.steps=3", "training.steps cannot be 3, as step 3 has begun"),
        ("resume", "", "the run is not paused"),
    ],
)
async def test_a_mistake_is_a_sentence(
    serve: Callable[..., Served], tmp_path: Path, action: str, value: str, sentence: str
) -> None:
    run = serve()
    assert (await run.ask(action, value)).startswith(f"refused: {sentence}")
    assert not (tmp_path / ACTIONS_FILE).exists() and run.said == []


async def test_a_supervised_run_can_only_be_stopped(serve: Callable[..., Served]) -> None:
    run = serve()
    run.plan, run.controls.steps_begun, run.controls.queue = replace(run.plan, objective=None), 0, None
    assert await run.ask("pause") == "refused: the only action on a run of supervised training is stop"
    assert await run.ask("stop") == (
        "stops after the work in progress; without a step of the training there is no checkpoint"
    )


async def test_a_run_that_starts_again_has_its_changed_settings(serve: Callable[..., Served]) -> None:
    run = serve()
    await run.ask("set", "training.steps=12")
    assert run.caller.changed is run.plan.config


async def test_a_run_that_repeats_bit_by_bit_can_only_be_stopped(serve: Callable[..., Served]) -> None:
    run = serve("--training.deterministic")
    assert "so the only action on it is stop" in await run.ask("pause")
    assert (await run.ask("stop")).startswith("stops after the step")


async def test_one_at_a_time_acts_and_all_may_look(serve: Callable[..., Served], tmp_path: Path) -> None:
    run = serve()
    first = await asyncio.to_thread(LiveClient, tmp_path, "the first")
    with first:
        assert await run.ask("pause", client=first)
        refusal = await run.ask("resume")
        assert refusal.startswith("refused: the first, process ") and "acts on this run: one at a time can" in refusal
        with await asyncio.to_thread(LiveClient, tmp_path, "a look") as other:
            state = await asyncio.to_thread(other.look)
        assert state["paused"] and state["holder"].startswith("the first, process ")
        await asyncio.to_thread(first.release)
        assert await run.ask("resume") == "goes on"
        assert await run.ask("pause", client=first)
    async with asyncio.timeout(20):  # the server hears that the first has gone
        while (await run.ask("resume")) != "goes on":
            await asyncio.sleep(0.01)


async def test_a_wrong_token_is_refused(serve: Callable[..., Served], tmp_path: Path) -> None:
    run = serve()
    place = json.loads((tmp_path / FILE).read_text())
    for wrong in ("wrong", "", place["token"][:-1]):
        (tmp_path / FILE).write_text(json.dumps(place | {"token": wrong}))
        assert (await run.ask("pause")).startswith("refused: this is not the token of the run in ")
    assert not run.controls.is_paused
    others = [json.dumps(place).replace(str(place["port"]), port) for port in ("1e400", "70000")]
    for damaged in ("{", "[]", "{}", "[" * 10**5, *others):
        (tmp_path / FILE).write_text(damaged)
        assert "is damaged: only the run writes it" in await run.ask("pause")
    (tmp_path / FILE).write_text(json.dumps(place | {"host": "elsewhere"}))
    assert "goes on at elsewhere: give the command there" in await run.ask("pause")
    (tmp_path / FILE).write_text(json.dumps(place))
    assert (await run.ask("pause")).startswith("pauses")


async def test_what_is_no_request_ends_only_its_connection(serve: Callable[..., Served], tmp_path: Path) -> None:
    run = serve()
    place = json.loads((tmp_path / FILE).read_text())
    for line in (b"\n", b"[1]\n", b"\xff\xfe\n", b"x" * 100_000 + b"\n", b'{"token": 1}\n', b"[" * 5000 + b"\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", place["port"])
        writer.write(line)
        async with asyncio.timeout(20):
            try:
                assert b"error" in (answer := await reader.read()) or answer == b""
            except ConnectionError:
                pass
        writer.close()
    assert (await run.ask("pause")).startswith("pauses")


async def test_the_longest_request_is_read_and_a_longer_one_is_a_mistake(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    run = serve()
    room = MOST_BYTES - len(json.dumps({"do": "set", "value": ""}))
    with await asyncio.to_thread(LiveClient, tmp_path, "a test") as client:
        assert "cannot change while a run goes on" in await run.ask("set", "x" * room, client=client)
        assert await run.ask("set", "x" * (room + 1), client=client) == (
            "refused: the request has 16,385 bytes, and 16,384 are read: give a shorter value"
        )
        assert (await run.ask("pause", client=client)).startswith("pauses")


async def test_the_viewer_acts_on_a_run_that_has_started_again(serve: Callable[..., Served], tmp_path: Path) -> None:
    first, viewer = LiveServer(tmp_path), LiveRun(tmp_path)
    first.begin(Served(tmp_path))  # type: ignore[arg-type]
    assert (await asyncio.to_thread(viewer.act, "pause", "")).startswith("pauses")
    first.stop()
    again = serve()
    assert viewer._acting is not None
    while not viewer._acting.is_closed:
        await asyncio.sleep(0)
    assert (await asyncio.to_thread(viewer.act, "pause", "")).startswith("pauses")
    assert again.controls.is_paused
    viewer.close()


async def test_a_run_that_has_ended(tmp_path: Path) -> None:
    run = Served(tmp_path)
    server = LiveServer(tmp_path)
    server.begin(run)  # type: ignore[arg-type]
    place = (tmp_path / FILE).read_text()
    client = await asyncio.to_thread(LiveClient, tmp_path, "a test")
    server.stop()
    ended = f"no training run goes on in {tmp_path}: it has ended, or its processes are not up yet"
    assert await run.ask("pause", client=client) == f"refused: {ended}" and client.is_closed
    assert await run.ask("pause") == f"refused: {ended}"
    (tmp_path / FILE).write_text(place)  # as after a SIGKILL
    async with asyncio.timeout(20):
        while (await run.ask("pause")) != f"refused: {ended}":
            await asyncio.sleep(0.01)
    (file := tmp_path / "file").touch()
    for missing in (tmp_path / "missing", file):
        with pytest.raises(UserError, match=f"there is no folder {missing}"):
            LiveClient(missing, "a test")
