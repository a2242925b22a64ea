"""`forge-env score RUN --again`: the environment of today judges recorded episodes, or says why it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrib.records.tests.conftest import Command
from forge_env.cli.main import main
from forge_env.core.episode import Episode, read_jsonl, write_jsonl
from forge_env.core.types import Outcome, Task
from forge_env.utils.secret_values import FILE
from tests.forge_env.cli.test_eval_cli import COIN, SECRETIVE

ENV = """\
import json
from pathlib import Path
from forge_env import Task, ToolEnv, reward, tool


class Looked(ToolEnv):
    @classmethod
    def tasks(cls, split="train", *, count, seed=0, data=""):
        rows = json.loads(Path(data).read_text())
        made = [
            Task(prompt=({"role": "user", "content": row["ask"]},), target=row["target"], metadata={"data": data})
            for row in rows
        ]
        return made[:count] if split == "all" else made

    @tool
    def look(self) -> str:
        "Look."
        return Path(self.task.metadata["data"]).with_name("shown").read_text()

    @reward
    def right(self, answer: str) -> float:
        if self.task.target == "broken":
            raise RuntimeError("the verifier is broken")
        return float(answer == self.task.target)

    @staticmethod
    def expert(messages):
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": messages[-1]["content"]}
        call = {"type": "function", "function": {"name": "look", "arguments": {}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
"""


def write_tasks(folder: Path, **target_of: str) -> None:
    rows = [{"ask": ask, "target": target} for ask, target in target_of.items()]
    (folder / "tasks.json").write_text(json.dumps(rows))


@pytest.fixture
def again(tmp_path: Path, command: Command) -> Command:
    """A run with the answer "red" to the tasks first and second; the fixture judges it again."""
    (tmp_path / "looked.py").write_text(ENV)
    (tmp_path / "shown").write_text("red")
    write_tasks(tmp_path, first="red", second="red")
    name, data = f"{tmp_path}/looked.py:Looked", f"data={tmp_path}/tasks.json"
    evaluation = ["eval", "--env", name, "--option", data, "--agent", "scripted:expert", "--split", "all"]
    assert main([*evaluation, "--tasks", "2", "--out", str(tmp_path / "run")]) == 0

    def judge(*more: str, code: int = 0) -> dict[str, Any]:
        [phase] = command("score", str(tmp_path / "run"), "--again", *more, code=code)["phases"]
        return dict(phase)

    return judge


def test_another_verdict_is_listed_and_written_under_the_recorded_ids(again: Command, tmp_path: Path) -> None:
    same = again()
    assert (same["judged"], same["changed"], same["not_judged"]) == (2, [], [])
    write_tasks(tmp_path, first="red", second="blue")
    phase = again("--out", str(tmp_path / "again.jsonl"))
    [changed] = phase["changed"]
    assert (changed["before"]["reward"], changed["now"]["reward"]) == (1.0, 0.0)
    assert (phase["reward_before"], phase["reward_now"]) == (1.0, 0.5)
    before = {episode.id: episode for episode in read_jsonl(tmp_path / "run" / "episodes.jsonl")}
    after = {episode.id: episode for episode in read_jsonl(tmp_path / "again.jsonl")}
    assert before.keys() == after.keys()
    now, was = after[changed["id"]], before[changed["id"]]
    assert (now.reward, now.success, now.rewards) == (0.0, False, {"right": 0.0})
    assert now.task.id == was.task.id and now.task.target == "blue"
    assert [turn.message for turn in now.turns] == [turn.message for turn in was.turns]
    assert sum(turn.reward for turn in now.turns) == 0.0


def test_siblings_are_compared_again(tmp_path: Path, command: Command) -> None:
    """By the method and the function of the run, as they are today; a replay of one episode compares nothing."""
    compares = ENV.replace("    @reward\n", "    @group_reward\n    def all_alike(self, answers):\n"
                           "        return [0.5] * len(answers)\n\n    @reward\n")  # fmt: skip
    (tmp_path / "looked.py").write_text(compares.replace("import Task", "import group_reward, Task"))
    (tmp_path / "own.py").write_text("def first(answers):\n    return [1.0, *[0.0] * (len(answers) - 1)]\n")
    (tmp_path / "shown").write_text("red")
    write_tasks(tmp_path, first="red", second="red")
    name, data = f"{tmp_path}/looked.py:Looked", f"data={tmp_path}/tasks.json"
    evaluation = ["eval", "--env", name, "--option", data, "--agent", "scripted:expert", "--split", "all", "-n", "2"]
    own = ["--group-reward", f"{tmp_path}/own.py:first", "--out", f"{tmp_path}/run"]
    assert main([*evaluation, "--tasks", "2", *own]) == 0
    assert sorted(e.reward or 0.0 for e in read_jsonl(tmp_path / "run" / "episodes.jsonl")) == [1.5, 1.5, 2.5, 2.5]
    [phase] = command("score", f"{tmp_path}/run", "--again")["phases"]
    assert (phase["judged"], phase["changed"], phase["reward_before"], phase["reward_now"]) == (4, [], 2.0, 2.0)
    episode = next(read_jsonl(tmp_path / "run" / "episodes.jsonl"))
    assert command("replay", f"{tmp_path}/run", episode.id)["same"]
    (tmp_path / "own.py").write_text("def first(answers):\n    return [0.0] * len(answers)\n")
    write_tasks(tmp_path, first="red", second="broken")
    [phase] = command("score", f"{tmp_path}/run", "--again")["phases"]
    now = [(change["now"]["reward"], change["now"]["rewards"]) for change in phase["changed"]]
    assert sorted(now, key=str) == [(1.5, {"right": 1.0, "all_alike": 0.5, "first": 0.0}), *[(None, {})] * 2]


def test_episodes_of_several_environments_are_judged_each_by_its_own(
    again: Command, tmp_path: Path, command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a training run records them, by their labels; each environment has options of its own."""
    write_tasks(tmp_path, third="blue")
    target, run = f"{tmp_path}/looked.py:Looked", tmp_path / "both"
    (tmp_path / "tasks.json").rename(tmp_path / "others.json")
    write_tasks(tmp_path, first="red", second="blue")
    played = sorted(read_jsonl(tmp_path / "run" / "episodes.jsonl"), key=lambda e: e.task.prompt[0]["content"])
    first, second = (replace(e, id=f"e{i}") for i, e in enumerate(played))
    second = replace(second, env="Looked_2", task=replace(second.task, prompt=({"role": "user", "content": "third"},)))
    second = replace(second, turns=(replace(second.turns[0], observation=second.task.prompt), *second.turns[1:]))
    (run / "episodes").mkdir(parents=True)
    write_jsonl(run / "episodes" / "train.jsonl", [second, replace(first, env="Looked")])
    options = {label: {"options": {"data": f"{tmp_path}/{name}.json"}, "max_turns": 5}
               for label, name in (("Looked", "tasks"), ("Looked_2", "others"))}  # fmt: skip
    env = {"name": f"{target} + {target}:0.5", "options": {}}
    (run / "config.yaml").write_text(json.dumps({"env": env, "mixture": options}))
    [phase] = command("score", f"{run}", "--again")["phases"]
    assert (phase["judged"], [change["id"] for change in phase["changed"]]) == (2, ["e1"])
    given = ["--option", f"Looked_2.data={tmp_path}/tasks.json"]
    [phase] = command("score", f"{run}", "--again", *given)["phases"]
    assert [one["reason"] for one in phase["not_judged"]] == ["the environment has no task with its prompt today"]
    assert main(["score", str(run), "--again", "--option", "data=x"]) == 2
    assert "--option data: the run has the environments Looked, Looked_2: name the one" in capfd.readouterr().err
    replayed = command("replay", f"{run}", "train:e1")
    assert replayed["env"] == target and replayed["options"] == {"data": f"{tmp_path}/others.json"}


def test_what_has_no_verdict_today_is_said_with_its_reason(
    again: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def reasons() -> set[str]:
        return {one["reason"] for one in again(code=1)["not_judged"]}

    write_tasks(tmp_path, first="red", second="broken")
    [changed] = again()["changed"]
    assert changed["now"]["outcome"] == "env_fault" and changed["now"]["reward"] is None
    assert "the verifier is broken" in changed["now"]["error"]
    rows = [{"ask": "second", "target": target} for target in ("blue", "green")]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    assert reasons() == {f"the environment has {many} with its prompt today" for many in ("no task", "2 tasks")}
    write_tasks(tmp_path, first="blue")
    assert main(["score", str(tmp_path / "run"), "--again"]) == 0
    out, err = capfd.readouterr()
    assert ": 1 before, 0 now\n" in out
    assert "note: 1 not judged: the environment has no task with its prompt today\n" in err
    write_tasks(tmp_path, first="red", second="red")
    (tmp_path / "shown").write_text("green")
    differs = "the observation before turn 1 differs, so that the turn is no answer to it"
    assert reasons() == {f"the record does not hold enough: {differs}"}
    lost = Episode(task=Task(prompt=()), id="lost", env="x", outcome=Outcome.INFRA_FAULT, reward=None, error="no disk")
    (tmp_path / "shown").write_text("red")
    write_jsonl(tmp_path / "run" / "episodes.jsonl", [lost])
    phase = again()
    assert phase["judged"] == 2
    assert phase["not_judged"] == [{"id": "lost", "reason": "it has nothing to judge: infra fault: no disk"}]


def test_tasks_without_end_are_those_of_the_record(
    again: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tasks that are listed are judged as they are today, and nothing waits for the others."""
    monkeypatch.setattr("contrib.records.again._SECONDS", 0.2)
    endless = ENV.replace(
        "        return made[:count]",
        """        while count > 1000:
            pass
        more = [Task(prompt=({"role": "user", "content": str(n)},)) for n in range(count - len(made))]
        return [*made, *more]
        return made[:count]""",
    )
    (tmp_path / "looked.py").write_text(endless)
    write_tasks(tmp_path, first="blue")
    assert main(["score", str(tmp_path / "run"), "--again"]) == 0
    out, err = capfd.readouterr()
    assert "has tasks without end" in err and ": 1 before, 0 now\n" in out
    write_tasks(tmp_path, first="red", second="red")
    assert main(["score", str(tmp_path / "run"), "--again"]) == 0
    assert "has tasks without end" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name another reward function by --reward, or give --again"),
        (["--again", "--reward", "a:b"], "one of them"),
        (["--again", "--at-once", "0"], "--at-once is 0; it is at least 1"),
        (["--reward", "a:b", "--option", "x=1"], "--option is for --again"),
        (["--again"], "does not record the environment and its options"),
    ],
)
def test_mistakes_are_sentences(
    options: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "some.jsonl", [Episode(task=Task(prompt=()), id="a", reward=1.0)])
    assert main(["score", str(tmp_path / "some.jsonl"), *options]) == 2
    assert message in capfd.readouterr().err


def test_secrets_of_options_are_read_from_their_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("contrib.records.again._MOST_TASKS", 2_000)
    Path("tossed.py").write_text(COIN)
    Path("secretive.py").write_text(SECRETIVE.replace("from coin ", "from tossed "))
    options = ('headers={"Authorization": "LEAK-1"}', "url=http://me:LEAK-2@host/?api_key=LEAK-3")
    secret = ("--option", options[0], "--option", options[1])
    command = ["eval", "--env", "secretive.py:Secretive", "--agent", "scripted:null", "--tasks", "2", "--out", "out"]
    assert main([*command, *secret]) == 0
    assert main(["score", "out", "--again"]) == 0
    (tmp_path / "out" / FILE).unlink()
    assert main(["score", "out", "--again"]) == 2
    out, err = capfd.readouterr()
    assert "LEAK" not in out + err and "give them again, as options" in err
