"""`forge-env replay`: recorded turns in an environment that is the same, that has changed, or that is not there."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import open_scripted
from contrib.records.replay import Replayer, compare_episodes, compare_values, diff_lines, replay_in
from contrib.records.run_settings import RunSettings
from forge_env.cli.main import main
from forge_env.core.episode import Episode, Turn, read_jsonl
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import Conversation
from forge_env.core.types import EpisodeLimits, Message, Task, ToolUse
from forge_env.registry.agent_spec import AgentSettings
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.forge_env.rollout import test_compaction as compaction
from tests.helpers.command_lines import with_changes

MAZE = '''\
"""An environment whose every answer hangs on a file, as one does whose code or data somebody has changed."""

import asyncio
import uuid
from pathlib import Path

from forge_env import EnvError, InfraError, Task, ToolEnv, reward, tool


def now() -> str:
    return Path("changed").read_text() if Path("changed").exists() else ""


class Maze(ToolEnv):
    """Find the way."""

    truncation_reward = -0.5

    def __init__(self, *, width: int = 3, use_tools: bool = True):
        super().__init__(use_tools=use_tools)
        self.width = width

    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        return [Task(prompt=({"role": "user", "content": f"way {i}"},)) for i in range(count)]

    @classmethod
    def effects(cls, *, width: int = 3) -> str:
        return "opens the door of somebody else" if width == 9 else ""

    @tool
    def look(self, at: str) -> str:
        """Look somewhere."""
        if now() == "raises":
            raise ValueError("it is dark")
        if now() == "fault":
            raise EnvError("the maze fell down")
        if now() == "machinery":
            raise InfraError("no light")
        lines = [f"{at} {i} of {self.width}: {self.np_random.integers(1000)}" for i in range(30)]
        lines[3] += " new" * (now() == "text")
        return "\\n".join([*lines, f"seen in {uuid.uuid4()} after 0.{uuid.uuid4().int % 1000} s"])

    async def step(self, action):
        messages, reward, terminated, truncated, info = await super().step(action)
        turns = sum(m["role"] == "assistant" for m in self.messages)
        terminated = terminated and now() != "goes on"
        return messages, reward, terminated or (turns == 2 and now() == "ends"), truncated, info

    @reward
    def found(self, answer: str) -> float:
        return float(now() != "strict")


def walk(messages):
    turns = sum(m["role"] == "assistant" for m in messages)
    if turns == 3:
        return {"role": "assistant", "content": "out"}
    look = {"name": "look", "arguments": f'{{"at": "door {turns}"}}'}
    call = {"id": f"c{turns}", "type": "function", "function": look}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
'''

Command = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "maze.py").write_text(MAZE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run a command with --json; returns the object that it printed, and its code and stderr."""

    def command(*arguments: str) -> dict[str, Any]:
        capfd.readouterr()
        code = main([*arguments, "--json"])
        out, err = capfd.readouterr()
        assert out.count("\n") == 1, err
        return {**json.loads(out), "code": code, "err": err}

    yield command


def record(run: Command, *more: str) -> None:
    """Evaluate into the folder "out"."""
    base = ["--env", "maze.py:Maze", "--agent", "scripted:maze.py:walk", "--tasks", "2", "-n", "2", "--out", "out"]
    run("eval", *with_changes(base, more))


def test_a_replay_elsewhere_says_where_the_environment_was_registered(
    run: Command, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORGE_ENV_REGISTRY", raising=False)
    assert main(["register", "maze.py:Maze", "--name", "a_maze"]) == 0
    record(run, "--env", "a_maze")
    record(run, "--env", "a_maze")  # where it was registered is no setting: the same evaluation is resumed
    (elsewhere := project.parent / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    capfd.readouterr()
    assert main(["replay", str(project / "out"), "1"]) == 2
    error = capfd.readouterr().err
    registered = f"it was {project}/maze.py:Maze, registered in {project}/.forge_env/registry.yaml"
    assert "there is no environment 'a_maze' in this folder" in error and registered in error
    assert main(["replay", str(project / "out"), "1", "--env", f"{project}/maze.py:Maze"]) == 0


# ---- what the same episode is ----


def test_an_episode_that_is_run_again_is_the_same(run: Command) -> None:
    record(run, "--option", "width=5")
    episodes = list(read_jsonl(Path("out/episodes.jsonl")))
    for episode in episodes:
        replayed = run("replay", "out", episode.id)
        assert (replayed["code"], replayed["same"], replayed["differences"]) == (0, True, [])
        assert replayed["options"] == {"width": 5}
        # Each look ends with a random id and a time.
        assert [turn["observation"] for turn in replayed["turns"]] == ["same", "expected", "expected", "expected"]
        assert {turn[what] for turn in replayed["turns"] for what in ("reward", "tools")} == {"same"}
        assert replayed["outcome"] == {"verdict": "same", "recorded": "scored", "replayed": "scored"}
        assert replayed["reward"] == {"verdict": "same", "recorded": 1.0, "replayed": 1.0}


def test_an_episode_that_ran_out_of_turns_is_the_same(run: Command) -> None:
    record(run, "--max-turns", "2")
    replayed = run("replay", "out", "1")
    assert (replayed["code"], replayed["outcome"]["replayed"], replayed["reward"]["replayed"]) == (0, "truncated", -0.5)
    whole = json.loads(Path("out/episodes.jsonl").read_text().splitlines()[0])
    # As if the context had been full before the second turn: there is no rule that would end it there again.
    whole["turns"], whole["tail"] = whole["turns"][:1], whole["turns"][1]["observation"]
    Path("short.jsonl").write_text(json.dumps(whole) + "\n")
    assert run("replay", "short.jsonl", "1")["code"] == 0


def test_options_of_one_phase_alone_are_in_the_episode(run: Command) -> None:
    async def play() -> Episode:
        factory = make("maze.py:Maze")
        (task,) = factory.tasks("test", count=1)
        options, limits = {"use_tools": False}, EpisodeLimits()
        async with factory, open_scripted("maze.py:walk", AgentSettings(env="maze.py:Maze")) as agent:
            played = run_episode(factory, agent, task, seed=1, episode_id="off/0", limits=limits, env_options=options)
            return await played

    episode = asyncio.run(play())
    assert "switched off" in episode.turns[1].observation[0]["content"]
    Path("off.jsonl").write_text(episode.to_json() + "\n")
    assert run("replay", "off.jsonl", "off/0")["code"] == 0


# ---- what has changed ----


def test_the_first_difference_is_shown_as_a_diff(run: Command, project: Path) -> None:
    record(run)
    (project / "changed").write_text("text")
    replayed = run("replay", "out", "1")
    assert replayed["code"] == 1
    (first,) = replayed["differences"]
    assert (first["turn"], first["what"]) == (1, "observation")
    assert first["diff"][1] == first["diff"][2].replace(" new", "").replace("+ ", "- ", 1)
    assert len(first["diff"]) <= 8, "one line has changed, and the last one has another time"
    assert [turn["observation"] for turn in replayed["turns"]] == ["same", "different", "not reached", "not reached"]
    assert replayed["stopped"].startswith("the observation before turn 1 differs")
    further = run("replay", "out", "1", "--keep-going")
    assert [turn["observation"] for turn in further["turns"]] == ["same", "different", "different", "different"]
    assert (further["code"], further["outcome"]["verdict"], further["stopped"]) == (1, "same", None)


def test_tools_rewards_and_ends_that_have_changed_are_differences(run: Command, project: Path) -> None:
    record(run)

    def differences(change: str) -> list[Any]:
        (project / "changed").write_text(change)
        replayed = run("replay", "out", "1")
        assert replayed["code"] == 1
        return list(replayed["differences"])

    raised = differences("raises")
    assert [(d["turn"], d["what"]) for d in raised] == [(0, "tools"), (1, "observation")]
    assert raised[0]["diff"] == ["- look: ok", "+ look: raised"]
    strict = differences("strict")
    assert [(d["turn"], d["what"]) for d in strict] == [(3, "reward"), (None, "reward"), (None, "rewards")]
    assert strict[0]["diff"] == ["- 1", "+ 0"]
    (only,) = differences("ends")
    assert (only["turn"], only["what"], only["recorded"]) == (2, "end", "turn 2 of 4 came next")
    (only,) = differences("goes on")
    assert (only["turn"], only["what"]) == (4, "end")
    assert only["replayed"] == "the record has no more turns, and the environment continues"


# ---- faults ----


def test_a_fault_of_the_environment_is_found_again(run: Command, project: Path) -> None:
    (project / "changed").write_text("fault")
    run("eval", "--env", "maze.py:Maze", "--agent", "scripted:maze.py:walk", "--tasks", "1", "--out", "out")
    assert Path("out/faults.jsonl").exists()
    shutil.copy("out/faults.jsonl", "alone.jsonl")
    for where in (("out", "faults:1"), ("alone.jsonl", "1")):
        replayed = run("replay", *where)
        assert (replayed["code"], replayed["outcome"]["recorded"]) == (0, "env_fault")
    (project / "changed").unlink()
    replayed = run("replay", "out", "faults:1")
    assert (replayed["code"], replayed["differences"][0]["what"]) == (1, "end")
    assert "the maze fell down" in replayed["differences"][0]["recorded"]


def test_a_fault_of_the_machinery_says_nothing_of_the_environment(run: Command, project: Path) -> None:
    (project / "changed").write_text("machinery")
    run("eval", "--env", "maze.py:Maze", "--agent", "scripted:maze.py:walk", "--tasks", "1", "--out", "out")
    (project / "changed").unlink()
    replayed = run("replay", "out/faults.jsonl", "1")
    assert (replayed["code"], replayed["outcome"]["verdict"]) == (0, "not reached")
    assert replayed["notes"] == [
        "the machinery failed then, which says nothing about the environment: InfraError: tool look: no light"
    ]


# ---- for people ----


def test_people_read_a_table_and_a_diff(run: Command, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record(run)
    capfd.readouterr()
    assert main(["replay", "out", "2"]) == 0
    out, err = capfd.readouterr()
    assert "the same: scored, reward 1" in out and "by scripted:maze.py:walk" in out and err == ""
    (project / "changed").write_text("strict")
    assert main(["replay", "out", "2"]) == 1
    out, _ = capfd.readouterr()
    assert "different, first in the reward of turn 3:\n    - 1\n    + 0\n" in out
    assert "and in 2 more: the reward, the parts of the reward" in out
    (project / "changed").write_text("text")
    assert main(["replay", "out", "2"]) == 1
    assert "--keep-going goes on" in capfd.readouterr().out
    with (project / "maze.py").open("a") as code:
        code.write("\n# another one\n")
    assert "note: the environment (maze.py) has changed since out" in run("replay", "out", "1")["err"]


def test_an_episode_that_is_not_there_is_one_sentence(run: Command) -> None:
    record(run)
    first = next(read_jsonl(Path("out/episodes.jsonl"))).id
    task = first.partition("/")[0]
    for episode, words in {
        "nothing/0": ["out has no episode 'nothing/0'", "It has 4:", "a line number will do as well"],
        "99": ["has no line 99: it has 4 lines"],
        "0": ["has no line 0"],
        "": ["has no episode ''"],
        task: [f"2 episodes of out begin with '{task}'"],
        f"{task}/7": [f"Did you mean {task}/"],
    }.items():
        replayed = run("replay", "out", episode)
        assert replayed["code"] == 2 and [word for word in words if word not in replayed["error"]] == []
    assert run("replay", "out", first[:-1] + "1")["episode"] == f"{task}/1"


def test_the_phases_of_a_training_run(run: Command, project: Path) -> None:
    record(run)
    lines = Path("out/episodes.jsonl").read_text()
    folder = project / "run/episodes"
    folder.mkdir(parents=True)
    for phase in ("before", "after"):
        (folder / f"{phase}.jsonl").write_text(lines)
    episode = next(read_jsonl(Path("out/episodes.jsonl")))
    (folder / "train.jsonl").write_text(replace(episode, id="train/0/0").to_json() + "\n")
    first = episode.id
    note = "does not record its settings"
    replayed = run("replay", "run", f"before:{first}")
    assert (replayed["code"], replayed["phase"], note in replayed["err"]) == (0, "before", True)
    assert "is in after, before: write after:" in run("replay", "run", first)["error"]
    assert "has the phases after, before, train: write PHASE:1" in run("replay", "run", "1")["error"]
    assert "no phase 'befor'. Did you mean before?" in run("replay", "run", "befor:1")["error"]
    env = {"name": "maze.py:Maze", "options": {"width": 4}, "max_turns": 4}
    (project / "run/config.yaml").write_text(json.dumps({"env": env}))  # JSON is YAML
    replayed = run("replay", "run", "after:2")
    assert (replayed["options"], replayed["line"], note in replayed["err"]) == ({"width": 4}, 2, False)
    assert "of 3" in replayed["differences"][0]["recorded"], "it was recorded with a width of 3"
    assert run("replay", "run/episodes/train.jsonl", "1")["options"] == {"width": 4}


def test_an_environment_that_is_not_there_is_one_sentence(run: Command, project: Path) -> None:
    record(run)
    lines = Path("out/episodes.jsonl").read_text()
    Path("gone.jsonl").write_text(lines.replace("maze.py:Maze", "mazes"))
    replayed = run("replay", "gone.jsonl", "1")
    assert replayed["code"] == 2 and "mazes" in replayed["error"]
    assert run("replay", "gone.jsonl", "1", "--env", "maze.py:Maze")["code"] == 0
    Path("nameless.jsonl").write_text(lines.replace("maze.py:Maze", ""))
    assert "names no environment: name it with --env" in run("replay", "nameless.jsonl", "1")["error"]
    Path("bad.jsonl").write_text("{}\n")
    assert "bad.jsonl:1: not an Episode" in run("replay", "bad.jsonl", "1")["error"]
    assert "has no option 'depth'" in run("replay", "out", "1", "--option", "depth=1")["error"]
    beyond = run("replay", "out", "1", "--option", "width=9")
    assert "maze.py:Maze opens the door of somebody else: the replay does it again" in beyond["err"]


# ---- every environment ----


@pytest.mark.parametrize("env", ["code_exec", "tool_api"])
def test_what_the_experts_did_can_be_done_again(run: Command, env: str) -> None:
    done = run("eval", "--env", env, "--agent", "scripted:expert", "--tasks", "1", "--out", "out")
    assert done["avg@1"] == 1.0
    replayed = run("replay", "out", "1")
    assert (replayed["code"], replayed["differences"]) == (0, [])


# ---- the comparison alone ----


def turn(number: int, text: str, reward: float, error: str) -> Turn:
    message: Message = {"role": "assistant", "content": f"turn {number}"}
    seen: Message = {"role": "user", "content": text}
    use = ToolUse(name="look", seconds=0.5, error=error)
    return Turn(kind="text", observation=(seen,), message=message, reward=reward, tool_uses=(use,))


PARTS = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from([0.0, 1.0]), st.sampled_from(["", "timeout"]))
TURNS = st.lists(PARTS, min_size=1, max_size=4)


@given(TURNS, TURNS)
def test_two_episodes_are_the_same_exactly_where_nothing_differs(first: list[Any], second: list[Any]) -> None:
    a, b = (
        Episode(
            task=Task(prompt=(), id="t"),
            turns=tuple(turn(i, *parts) for i, parts in enumerate(turns)),
            reward=sum(parts[1] for parts in turns),
            id="e",
        )
        for turns in (first, second[: len(first)])
    )
    assert compare_episodes(a, b, dict(enumerate(b.turns))).same == (first == second[: len(first)])


@pytest.mark.parametrize("are_recorded", [True, False])
@pytest.mark.parametrize(
    ("limits", "options", "summary"),
    [
        ({}, {}, "sum"),
        ({"max_tokens": 520, "compact_at": 0.4}, {"steps": 3, "words": 60}, "a long summary"),
        ({"max_turn_tokens": 8}, {}, "a longer text than that"),
        ({"max_turns": 6}, {}, "sum"),
        ({}, {"words": 120}, "sum"),
    ],
)
async def test_an_episode_with_summaries_is_the_same(
    tiny_model: Path, limits: Any, options: Any, summary: str, are_recorded: bool
) -> None:
    """Also if nobody has recorded the limits: the turns say when a summary was asked for."""
    played = replace(compaction.LIMITS, **limits)
    recorded, _ = await compaction.play(tiny_model, played, summary, **options)
    known: EpisodeLimits | None = played if are_recorded else replace(played, compact_at=0.0)
    async with EnvFactory(compaction.Walk, **options) as factory:
        found = await replay_in(factory, recorded, RunSettings(limits=known))
    assert found.same, found.differences
    assert [turn.is_summary for turn in found.replayed.turns] == [turn.is_summary for turn in recorded.turns]
    assert (found.replayed.ended_by, found.replayed.lineage) == (recorded.ended_by, recorded.lineage)


async def test_conversations_that_take_turns_go_on_where_they_were() -> None:
    """The record has one conversation after the other; the environment goes to and fro between them."""
    kept = [turn(i, text, 0.0, "") for i, text in enumerate(["a0", "a1", "b0", "b1"])]
    episode = Episode(task=Task(prompt=()), turns=tuple(kept), reward=0.0, id="e")
    agent = Replayer(episode)
    talks = {name: Conversation(request_id=name) for name in "ab"}
    for asked in ("b0", "a0", "a1", "b1"):
        talk = talks[asked[0]]
        talk.observation = ({"role": "user", "content": asked},)
        again, action = await agent.act(talk, ())
        talk.turns.append(again)
        assert action.text == f"turn {['a0', 'a1', 'b0', 'b1'].index(asked)}"
    assert list(agent.turn_of) == [2, 0, 1, 3] and agent.stop is None
    changed = Replayer(episode)
    again, _ = await changed.act(Conversation(request_id="a", observation=kept[0].observation), ())
    with pytest.raises(PolicyError, match="observation before turn 2 differs"):  # where a conversation began
        await changed.act(Conversation(request_id="b", observation=({"role": "user", "content": "B0"},)), ())
    talks["a"].observation = ({"role": "user", "content": "a2"},)
    with pytest.raises(PolicyError, match="the record has no more turns"):
        await agent.act(talks["a"], ())
    assert agent.stop is not None and agent.stop.number == 4


# ---- texts ----


@pytest.mark.parametrize(
    ("was", "now", "verdict"),
    [
        ("at 0x7f3a2b1c", "at 0x7f3a00ff", "expected"),
        ("took 0.31 s", "took 12.5 s", "expected"),
        ("2024-05-01T10:00:00Z", "2025-01-02 11:22:33.5+02:00", "expected"),
        ("/tmp/abc/x.py", "/tmp/def/x.py", "expected"),
        ("/tmp/abc/x.py", "/tmp/abc/y.py", "different"),
        ("costs 3.50", "costs 3.51", "different"),
        ("7 s", "8 s", "different"),
        (0.1 + 0.2, 0.3, "same"),
        (None, 0.0, "different"),
        ([{"role": "user", "content": "a"}], ({"role": "user", "content": "a"},), "same"),
        ([{"role": "user", "content": "a"}], [{"role": "tool", "content": "a"}], "different"),
        ([], [{"role": "user", "content": "a"}], "different"),
    ],
)
def test_times_and_random_names_are_expected_to_differ(was: Any, now: Any, verdict: str) -> None:
    assert compare_values(was, now) == verdict


@given(st.text(), st.text())
def test_a_difference_is_short_and_never_empty(was: str, now: str) -> None:
    if was == now:
        return
    lines = diff_lines(was, now)
    assert 0 < len(lines) <= 12 and all(len(line) <= 160 for line in lines)
    assert any(line[0] in "+-" for line in lines)
