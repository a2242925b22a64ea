"""Evaluation sets: `forge-env eval --set`, and `forge_env.evaluate_set`."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agents.scripted import ScriptedAgent
from envs.math import Math
from forge_env import evaluate_set
from forge_env.cli.main import main
from forge_env.registry import agent_spec
from forge_env.registry.agent_spec import AgentSettings

SET = """
defaults: {tasks: 4, samples: 2}
envs:
  - math
  - {name: hard, env: math, options: {level: 3}, tasks: 3}
agents:
  - scripted:null
  - {name: best, agent: scripted:expert}
  - scripted:wrong.py:play
"""
WRONG = 'def play(messages):\n    return {"role": "assistant", "content": "no"}\ndef nothing(messages): 0\n'


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")  # no cell is wrapped
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(text: str, *more: str, code: int, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    Path("set.yaml").write_text(text)
    capfd.readouterr()
    result = main(["eval", "--set", "set.yaml", "--out", "out", "--json", *more])
    out, err = capfd.readouterr()
    assert (result, out.count("\n")) == (code, 1), err
    return json.loads(out)


def test_a_set_measures_every_pair_and_compares_the_agents(capfd: pytest.CaptureFixture[str]) -> None:
    result = run(SET, code=0, capfd=capfd)
    rows = [(row["env"], row["agent"], row["figures"]["pass@1"], row["figures"]["tasks"]) for row in result["rows"]]
    assert rows == [
        (env, agent, float(agent == "best"), tasks)
        for env, tasks in (("math", 4), ("hard", 3))
        for agent in ("scripted:null", "best", "scripted:wrong.py:play")
    ]
    differences = [(c["env"], *c["agents"], c["paired"]["difference"]["value"]) for c in result["comparisons"]]
    assert len(differences) == 6 and ("hard", "scripted:null", "best", 1.0) in differences
    # By Holm's method, four differing pairs of six come first: six times the smallest p, which is 2 of 2 ** 4 flips.
    assert min(c["paired"]["p_value"] for c in result["comparisons"]) == pytest.approx(6 * 2 / 2**4)
    assert json.loads(Path("out/set.json").read_text())["comparisons"] == result["comparisons"]

    again = run(SET, code=0, capfd=capfd)
    assert sum(row["figures"]["episodes_run"] for row in again["rows"]) == 0
    single = ["--env", "math", "--option", "level=3", "--agent", "scripted:expert", "-n", "2", "--tasks", "3"]
    assert main(["eval", *single, "--out", "out/hard/best", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["episodes_run"] == 0, "the folder is one of the single command"

    (Path("out/math/best/episodes.jsonl")).unlink()
    assert main(["eval", "--set", "set.yaml", "--out", "out"]) == 0
    out, err = capfd.readouterr()
    assert "best minus scripted:null" in out and "everything is in out" in out
    assert "each of the 6 differences are corrected for their number, by Holm's method" in err
    assert len(Path("out/math/best/episodes.jsonl").read_text().splitlines()) == 8


def test_one_that_fails_loses_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    text = """
rows:
  - {env: math, agent: "vllm:nowhere", tasks: 2}
  - {env: mathh, agent: scripted:expert}
  - {env: math, agent: scripted:expert, tasks: 2}
  - {env: math, agent: scripted:wrong.py:nothing, tasks: 2}
  - {env: math, agent: scripted:wrong.py:play, tasks: 1, seed: 3}
"""
    result = run(text, code=1, capfd=capfd)
    words = ("there is no model folder nowhere", "Did you mean math?")
    assert [word in row["error"] for word, row in zip(words, result["rows"][:2], strict=True)] == [True] * 2
    assert (result["rows"][2]["error"], result["rows"][2]["figures"]["pass@1"]) == (None, 1.0)
    assert result["comparisons"] == []
    assert main(["eval", "--set", "set.yaml", "--out", "out"]) == 1
    notes = capfd.readouterr().err.splitlines()
    for words in (
        "scripted:expert in mathh failed: there is no environment",
        "scripted:wrong.py:nothing in math: there is no result: all 2 episodes ended by a fault",
        "out/math/scripted-expert and out/math/scripted-wrong.py-play have no attempt at a task in common",
    ):
        assert any(line.startswith(f"note: {words}") for line in notes), notes


class Local(ScriptedAgent):
    """Stands for a local model."""

    opened: ClassVar[list[str]] = []

    def greedily(self) -> Local:
        return self


@asynccontextmanager
async def open_local(model: str, settings: AgentSettings) -> AsyncIterator[Local]:
    Local.opened.append(f"{model} {settings.temperature}")
    yield Local(Math.expert)
    Local.opened.append("closed")


def test_rows_with_one_engine_share_it(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent_spec.OPENERS, "vllm", f"{__name__}:open_local")
    monkeypatch.setattr(Local, "opened", [])
    Path("set.yaml").write_text(f"""
defaults: {{tasks: 2, greedy: false}}
envs: [math, {{name: hard, env: math, options: {{level: 3}}}}]
agents:
  - {{name: cold, agent: "vllm:{tiny_model}", temperature: 0.5}}
  - {{name: hot, agent: "vllm:{tiny_model}", temperature: 1.0}}
""")
    result = evaluate_set("set.yaml", "out", progress=False)
    assert [row.result.success for row in result.rows if row.result] == [1.0] * 4
    assert Local.opened == [f"{tiny_model} 0.5", "closed", f"{tiny_model} 1.0", "closed"]


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("- math", [], "set.yaml is no mapping: write envs: and agents:"),
        ("envs: [", [], "set.yaml cannot be read"),
        ("env: [math]", [], "a set has no key 'env'. Did you mean envs?"),
        ("envs: [math]", [], "set.yaml has no agents"),
        ("agents: [scripted:null]", [], "set.yaml has no environments"),
        ("envs: math", [], "envs is 'math'; write a list"),
        ("envs: [3]", [], "3 under envs is neither a text nor a mapping with the text env"),
        (f"{SET}  - scripted:null\n", [], "the agent 'scripted:null' is there twice"),
        ("envs: [math, {name: math, env: math}]", [], "the environment 'math' is there twice"),
        ("rows: [{env: math, agent: a}, {env: math, agent: a}]", [], "and the agent 'a' is there twice"),
        ("rows: [{env: math}]", [], "is no mapping with the texts env and agent"),
        ("defaults: {task: 3}", [], "set.yaml, defaults: an evaluation has no setting 'task'. Did you mean tasks?"),
        ("defaults: 3", [], "defaults are 3"),
        ("defaults: {tasks: 3, tasks: 4}", [], "set.yaml, lines 1 and 1: tasks is set twice"),
        ("rows: []", [], "set.yaml has no rows"),
        ("envs: [{env: math, tasks: many}]", [], "the environment 'math': tasks is 'many'; it must be a whole number"),
        ("rows: [{env: math, agent: a, out: b}]", [], "no setting 'out'"),
        (SET, ["--env", "math"], "env cannot stand beside --set set.yaml"),
        (SET, ["--no-greedy", "--max-turns", "2"], "greedy and max_turns cannot stand beside --set set.yaml"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, more: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert words in run(text, *more, code=2, capfd=capfd)["error"]
    assert not Path("out").exists()


def test_a_folder_has_one_process_and_one_kind_of_content(capfd: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    descriptor = os.open("out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "another process evaluates into out" in run(SET, code=2, capfd=capfd)["error"]
    os.close(descriptor)
    for name in ("plan.json", "config.yaml"):
        Path("out", name).write_text("{}")
        assert "holds an evaluation of one agent or a training run" in run(SET, code=2, capfd=capfd)["error"]
        Path("out", name).unlink()
