"""`forge-env eval`: figures, determinism, resumption after a real SIGKILL, refusals of one sentence."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.main import main
from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.evaluation.folder import EvalFolder
from forge_env.evaluation.plan import EvalPlan, limits_of, thinking_of
from forge_env.evaluation.summary import busy_seconds, tokens_of
from forge_env.rollout.factory import make
from forge_env.utils.secret_values import FILE
from tests.helpers.command_lines import with_changes
from tests.helpers.rows import rows

Run = Callable[..., dict[str, Any]]

COIN = '''\
"""An environment whose reward hangs on the episode's seed, and agents that end the process at a chosen answer."""

import asyncio
import os
import random
import signal
from pathlib import Path

from forge_env import EnvError, Task, ToolEnv, reward, tool
from forge_env.core.errors import UserError


class Coin(ToolEnv):
    """Throw a coin."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0, first: int = 0):
        numbers = range(first, first + count)
        return [Task(prompt=({"role": "user", "content": f"{split} {seed} {i}"},)) for i in numbers]

    async def reset(self, *, seed=None, options=None):
        self.luck = 0.0
        return await super().reset(seed=seed, options=options)

    @tool
    async def throw(self) -> str:
        """Throw it."""
        self.luck = float(self.np_random.random())
        if Path("slow").exists() and self.luck > 0.8:
            await asyncio.Event().wait()
        await asyncio.sleep(self.luck / 1000)  # so that episodes end in another order than they began
        return f"{self.luck}"

    @reward
    def heads(self) -> float:
        if Path("broken").exists() and self.luck > 0.7:
            raise EnvError("the coin fell off the table")
        return float(self.luck > 0.5)


class Drawn(Coin):
    """Throw coins that are drawn anew for each number of them."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        drawn = random.Random(f"{seed}/{count}").sample(range(40), count)
        return [Task(prompt=({"role": "user", "content": f"{split} {i}"},)) for i in drawn]


class Blocking(Coin):
    """Never make a task."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        os.kill(os.getpid(), int(os.environ["COIN_SIGNAL"]))
        while True:
            pass


class NoTarget(Coin):
    """Ask for a target that no task has."""

    heads = None

    @reward
    def right(self, answer) -> float:
        return float(answer == self.task.target)


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def play(messages):
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "done"}
    call = {"id": "c", "type": "function", "function": {"name": "throw", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


answers = 0


def ending(messages):
    global answers
    answers += 1
    if answers == 40 and os.environ.get("COIN_SIGNAL"):
        os.kill(os.getpid(), int(os.environ["COIN_SIGNAL"]))
    return play(messages)


def broken(messages):
    raise KeyError("no key")


def mistaken(messages):
    raise UserError("set the variable COIN_KEY")


def endless(messages):
    while True:
        pass
'''


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "coin.py").write_text(COIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run `forge-env eval ... --json` in this process; returns the object that it printed, with its exit code."""

    def command(*arguments: str, code: int = 0) -> dict[str, Any]:
        capfd.readouterr()
        result = main(["eval", *arguments, "--json"])
        out, err = capfd.readouterr()
        assert result == code, err
        assert out.count("\n") == 1
        return json.loads(out)

    yield command


def coin(agent: str, out: str, *more: str, n: int = 4) -> list[str]:
    fixed = f"--env coin.py:Coin --agent scripted:coin.py:{agent} -n {n} --tasks 12 --out {out}"
    return with_changes(fixed.split(), more)


SECRETIVE = """
from coin import Coin


class Secretive(Coin):
    def __init__(self, headers: dict[str, str], url: str):
        super().__init__()
        self.headers, self.url = headers, url

    def setup(self):
        if self.url.endswith("down"):
            raise ValueError(f"{self.url} refuses {self.headers['Authorization']}")
"""


def test_secrets_are_in_no_file_but_one_and_in_no_sentence(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secretive.py").write_text(SECRETIVE)
    headers = ("--option", 'headers={"Authorization": "LEAK-1"}')
    common = ("--env", "secretive.py:Secretive", "--agent", "scripted:null", "--tasks", "2", *headers)
    for url, code in (("http://me:LEAK-2@host/?api_key=LEAK-3", 0), ("http://me:LEAK-2@host/down", 1)):
        result = run(*common, "--option", f"url={url}", "--out", "out", code=code)
        assert "LEAK" not in json.dumps(result)
        files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and "LEAK" in path.read_text()]
        assert [(path.name, path.stat().st_mode & 0o777) for path in files] == [(FILE, 0o600)]
        out, err = capfd.readouterr()
        assert "LEAK" not in out + err
        shutil.rmtree(tmp_path / "out")


def in_a_process(
    arguments: list[str], *, code: Sequence[str] = ("-m", "forge_env", "eval"), **environ: str
) -> subprocess.CompletedProcess[str]:
    repository = str(Path(__file__).parents[3])
    return subprocess.run(
        [sys.executable, *code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": repository, **environ},
        # A shell's background job ignores Ctrl-C, and so does all that it starts: the tests may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


OF_THE_COMMAND = {"out", "episodes_run", "episodes_read", "dropped_faults"}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """What does not hang on the clock, nor on the command and where it wrote."""
    tools = {name: (tool["calls"], tool["errors"]) for name, tool in result["tools"].items()}
    left_out = {"seconds", "agent", *OF_THE_COMMAND}
    return {key: value for key, value in result.items() if key not in left_out} | {"tools": tools}


def records(folder: str) -> dict[str, tuple[int, float | None]]:
    return {e.id: (e.seed, e.reward) for e in read_jsonl(Path(folder) / "episodes.jsonl")}


def test_the_expert_scores_one_and_nothing_scores_nothing(run: Run) -> None:
    expert = run("--env", "math", "--agent", "scripted:expert", "-n", "2", "--tasks", "5", "--out", "expert")
    null = run("--env", "math", "--agent", "scripted:null", "-n", "2", "--tasks", "5", "--out", "null")
    for name in ("avg@2", "pass@1", "pass@2", "pass^1", "pass^2", "reward"):
        assert (expert[name], null[name]) == (1.0, 0.0)
    assert expert["ci95"][1] == 1.0 and null["ci95"][0] == 0.0
    assert (expert["env"], expert["agent"], expert["tasks"], expert["episodes"]) == ("math", "scripted:expert", 5, 10)
    assert expert["tools"]["calculator"]["calls"] == 10
    assert (expert["faults"], expert["tokens"], "cost" in expert) == ({}, 0, False)
    saved = json.loads(Path("expert/eval.json").read_text())
    same = expert.keys() - {"tasks", *OF_THE_COMMAND}
    assert {key: saved[key] for key in same} == {key: expert[key] for key in same}
    assert json.loads(Path("expert/plan.json").read_text())["limits"]["max_turns"] == 8


def test_figures_follow_from_the_episodes_on_disk(run: Run) -> None:
    result = run(*coin("play", "out"))
    won = [sum(r == 1.0 for i, (_, r) in records("out").items() if i.startswith(f"{task.id}/")) for task in tasks()]
    assert len(records("out")) == result["episodes"] == 48
    assert 0 < result["successes"] == sum(won) < 48
    assert result["avg@4"] == result["pass@1"] == pytest.approx(sum(won) / 48)
    assert result["pass@4"] == pytest.approx(sum(w > 0 for w in won) / 12)
    assert result["pass^4"] == pytest.approx(sum(w == 4 for w in won) / 12)
    assert result["pass@1"] < result["pass@2"] < result["pass@3"] <= result["pass@4"]
    assert result["ci95"][0] < result["avg@4"] < result["ci95"][1]


def tasks() -> list[Task]:
    return list(make("coin.py:Coin").tasks("test", count=12, seed=0))


def test_tables_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *coin("play", "out", "--price-completion", "1")]) == 0
    out, err = capfd.readouterr()
    words = ("avg@4", "pass@3", "pass^2", "throw", "48 episodes of 12 tasks", "cost 0.0000", "everything is in out")
    assert [word for word in words if word not in out] == []
    assert err == ""


def test_kinds_of_task_have_figures_of_their_own(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["--env", "math", "--agent", "scripted:expert", "-n", "2", "--tasks", "12", "--out", "out"]
    kinds = run(*command)["kinds"]
    assert list(kinds) == ["minus", "plus", "times"] and sum(kind["tasks"] for kind in kinds.values()) == 12
    assert [(kind["avg@2"], kind["episodes"]) for kind in kinds.values()] == [
        (1.0, 2 * kind["tasks"]) for kind in kinds.values()
    ]
    assert main(["eval", *command]) == 0
    out, _ = capfd.readouterr()
    assert re.search(r"kind of task +tasks +episodes +avg@2 +95% interval, by task", out)
    assert re.search(rf"minus +{kinds['minus']['tasks']} +\d+ +1\.0000 +0\.\d+ to 1\.0000", out)
    assert "kinds" not in run(*coin("play", "plain", n=1))


def test_tokens_are_counted_as_an_endpoint_counts_them() -> None:
    turns = [
        {"kind": "sampled", "prompt_ids": [1, 2, 3], "token_ids": [4, 5], "starts_row": True},
        {"kind": "sampled", "prompt_ids": [6], "token_ids": [7]},
        {"kind": "sampled", "prompt_ids": [1, 9], "token_ids": [8], "starts_row": True},
        {"kind": "text", "usage": {"prompt_tokens": 10, "completion_tokens": 20}},
    ]
    assert tokens_of(_episode(turns)) == (3 + 6 + 2 + 10, 2 + 1 + 1 + 20)


def test_seconds_are_those_in_which_anything_ran() -> None:
    spans = [(100.0, 2.0), (101.0, 3.0), (101.5, 0.5), (200.0, 1.0)]
    episodes = [_episode([], started=start, seconds=seconds) for start, seconds in spans]
    assert busy_seconds(episodes) == 5.0
    assert busy_seconds([]) == 0.0


def _episode(turns: list[dict[str, Any]], **info: float) -> Episode:
    from forge_env.core.episode import Turn

    made = []
    for turn in turns:
        ids = {key: tuple(turn[key]) for key in ("prompt_ids", "token_ids") if key in turn}
        count = len(ids.get("token_ids", ()))
        extra = {"logprobs": (0.0,) * count, "versions": ((0, count),)} if count else {}
        made.append(Turn(observation=(), message={"role": "assistant", "content": ""}, **{**turn, **ids, **extra}))
    task = Task(prompt=())
    return Episode(task=task, turns=tuple(made), outcome=Outcome.SCORED, reward=0.0, id="e/0", info=info)


def test_seeds_hang_on_the_seed_the_task_and_the_attempt_alone(run: Run) -> None:
    one = run(*coin("play", "one", "--concurrency", "1"))
    many = run(*coin("play", "many", "--concurrency", "48"))
    assert figures(one) == figures(many)
    assert records("one") == records("many")
    assert list(records("one")) != list(records("many")), "they ended in another order"
    assert len({seed for seed, _ in records("one").values()}) == 48
    other = run(*coin("play", "other", "--seed", "1"))
    assert records("one").values() != records("other").values() and other["episodes"] == 48


def test_a_run_that_was_killed_ends_with_the_same_numbers(run: Run) -> None:
    whole = run(*coin("play", "whole"))
    command = coin("ending", "killed", "--concurrency", "6")
    killed = in_a_process(command, COIN_SIGNAL=str(int(signal.SIGKILL)))
    assert killed.returncode == -signal.SIGKILL
    episodes = Path("killed/episodes.jsonl")
    left = len(records("killed"))
    assert 0 < left < 48
    assert not Path("killed/eval.json").exists()
    with episodes.open("a") as file:  # as if it had been killed while it wrote
        file.write(whole_line := Path("whole/episodes.jsonl").read_text().splitlines()[0][:200])
    assert len(whole_line) == 200
    result = run(*command)
    assert figures(result) == figures(whole)
    assert records("killed") == records("whole")
    assert len(episodes.read_text().splitlines()) == 48, "what was there was not run again"
    assert (result["episodes_run"], result["episodes_read"]) == (48 - left, left)
    again = run(*command)
    assert again == {**result, "episodes_run": 0, "episodes_read": 48}


def test_a_file_that_ends_anywhere_is_mended(run: Run) -> None:
    whole = run(*coin("play", "out", n=1))
    file = Path("out/episodes.jsonl")
    data = file.read_bytes()
    for end in (0, data.index(b"\n"), data.index(b"\n") + 1, len(data) - 1):
        file.write_bytes(data[:end])
        Path("out/eval.json").unlink()
        assert figures(run(*coin("play", "out", n=1))) == figures(whole)
        assert len(records("out")) == len(file.read_text().splitlines()) == 12
        assert Path("out/eval.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_keep_what_is_done(run: Run, number: int, code: int) -> None:
    command = coin("ending", "out", "--concurrency", "3")
    stopped = in_a_process(command, COIN_SIGNAL=str(int(number)))
    assert stopped.returncode == code, stopped.stderr
    done = len(records("out"))
    assert 0 < done < 48
    note = f"note: {done} of 48 episodes are in out; the same command resumes from there"
    assert stopped.stderr.splitlines()[-1] == note, "a slow machine may print progress before it"
    assert "Traceback" not in stopped.stderr
    assert run(*command)["episodes"] == 48


def test_code_that_blocks_the_command_is_interrupted() -> None:
    """One signal, while `tasks` of the environment runs; nothing has been recorded by then."""
    command = ["--env", "coin.py:Blocking", *coin("play", "out")[2:]]
    stopped = in_a_process(command, COIN_SIGNAL=str(int(signal.SIGINT)))
    assert (stopped.returncode, stopped.stderr) == (130, "note: interrupted before the end of the first episode\n")
    assert not Path("out").exists()


def test_faults_stand_apart_and_are_tried_again(run: Run, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = run(*coin("play", "whole"))
    (project / "broken").touch()
    first = run(*coin("play", "out"))
    lines = [json.loads(line) for line in Path("out/faults.jsonl").read_text().splitlines()]
    assert first["faults"] == {"EnvError": len(lines)} and len(lines) > 0
    assert first["episodes"] == 48 - len(lines) == len(records("out"))
    assert lines[0]["class"] == "EnvError" and "fell off the table" in lines[0]["error"]
    assert Episode.from_json(json.dumps(lines[0]["episode"])).reward is None
    line = 1 + COIN.splitlines().index('            raise EnvError("the coin fell off the table")')
    assert first["first_errors"] == {"EnvError": f"reward heads (coin.py:{line}): the coin fell off the table"}
    assert main(["eval", *coin("play", "out")]) == 0
    out, _ = capfd.readouterr()
    assert "the first one's error" in out and "fell off the table" in out
    (project / "broken").unlink()
    second = run(*coin("play", "out"))
    assert second["faults_retried"] == 2 * len(lines)
    assert figures(second) | {"faults_retried": 0} == figures(whole)


def test_a_time_out_counts_as_an_attempt_and_stays(run: Run, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "slow").touch()
    first = run(*coin("play", "out", "--episode-seconds", "0.2"))
    there = list(read_jsonl(Path("out/episodes.jsonl")))
    slow = [episode for episode in there if episode.outcome is Outcome.TIMEOUT]
    assert 0 < len(slow) == first["timeouts"] == first["outcomes"]["timeout"]
    assert first["episodes"] == 48 == len(there) and first["faults"] == {} and not Path("out/faults.jsonl").exists()
    assert first["avg@4"] == pytest.approx(first["successes"] / 48)
    assert first["without_timeouts"]["avg@4"] > first["avg@4"]
    (project / "slow").unlink()
    assert figures(run(*coin("play", "out", "--episode-seconds", "0.2"))) == figures(first), "it is not tried again"
    assert main(["eval", *coin("play", "out", "--episode-seconds", "0.2")]) == 0
    assert f"avg@4 without {len(slow)} time-outs" in capfd.readouterr().out


def test_without_targets_nothing_is_scored(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = coin("play", "out", "--env", "coin.py:NoTarget", n=1)
    result = run(*arguments, code=1)
    assert (result["episodes"], result["avg@1"], result["reward"]) == (12, None, None)
    words = "no task has a target, and the reward right"
    assert words in result["unscored"]
    assert main(["eval", *arguments]) == 1
    shown = capfd.readouterr()
    assert f"note: nothing was scored: {words}" in shown.err and "0.0000" not in shown.out


def test_an_agent_that_always_breaks_is_no_result_and_says_why(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    result = run(*coin("broken", "out", n=1), code=1)
    assert (result["episodes"], result["avg@1"], result["faults"]) == (0, None, {"PolicyError": 12})
    line = 1 + COIN.splitlines().index('    raise KeyError("no key")')
    assert main(["eval", *coin("broken", "out", n=1)]) == 1
    words = (
        f"all 12 episodes ended by a fault, the first one by PolicyError: agent (coin.py:{line}): KeyError: 'no key'"
    )
    assert f"note: there is no result: {words}" in capfd.readouterr().err


def test_a_script_has_as_long_as_the_command_says_and_the_plan_says_it_too(run: Run) -> None:
    result = run(*coin("endless", "out", "--answer-seconds", "0.05", n=1), code=1)
    assert result["first_errors"] == {"PolicyError": "PolicyError: ScriptedAgent did not answer within 0.05 s"}
    assert json.loads(Path("out/plan.json").read_text())["answer_seconds"] == 0.05
    run(*coin("play", "out2", "--answer-seconds", "60", n=1))
    assert "other settings (answer_seconds 60.0)" in run(*coin("play", "out2", n=1), code=2)["error"]


def test_more_tasks_extend_an_evaluation_and_only_the_new_ones_are_played(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = coin("play", "out", "--env", "coin.py:Drawn", n=2)
    run(*arguments)
    first = records("out")
    more = run(*arguments, "--tasks", "20")
    assert (more["tasks"], more["episodes_run"], more["episodes_read"], more["extended_from"]) == (20, 16, 24, [12])
    assert records("out").items() > first.items() and len(records("out")) == 40
    plan, result = (json.loads(Path(f"out/{name}.json").read_text()) for name in ("plan", "eval"))
    assert (plan["tasks"], plan["extended_from"], result["extended_from"]) == (20, [12], [12])
    lines = Path("out/episodes.jsonl").read_text().splitlines(keepends=True)
    Path("out/episodes.jsonl").write_text("".join(lines[:30]))  # as if the extension had been killed
    assert run(*arguments, "--tasks", "20")["episodes_run"] == 10
    assert main(["eval", *arguments, "--tasks", "25"]) == 0
    assert "note: out was extended from 12 and 20 to 25 tasks; the first ones are the same" in capfd.readouterr().err
    assert len(records("out")) == 50
    assert "other settings (tasks 25)" in run(*arguments, "--tasks", "20", code=2)["error"]
    settings = run(*arguments, "--tasks", "30", "--seed", "1", code=2)["error"]
    assert "other settings (seed 0)" in settings and len(records("out")) == 50


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seed", "1"], ["results of other settings (seed 0)", "choose another --out, or delete that folder"]),
        (["--tasks", "11"], ["other settings (tasks 12)"]),
        (["--option", "first=3"], ["other settings (options {})"]),
        (["--agent", "scripted:null"], ["other settings (agent 'scripted:coin.py:play')"]),
        (["--max-thinking-tokens", "3"], ["other settings (limits"]),
    ],
)
def test_a_folder_of_other_settings_is_refused(run: Run, more: list[str], words: list[str]) -> None:
    run(*coin("play", "out", n=1))
    before = sorted((p.name, p.read_bytes()) for p in Path("out").iterdir())
    error = run(*coin("play", "out", *more, n=1), code=2)["error"]
    assert [word for word in words if word not in error] == []
    assert before == sorted((p.name, p.read_bytes()) for p in Path("out").iterdir())


AGENT = """\
import manners


def play(messages):
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "done"}
    call = {"id": "c", "type": "function", "function": {"name": "throw", "arguments": "{}"}}
    return {"role": "assistant", "content": manners.WORDS, "tool_calls": [call]}
"""


def one(agent: str, out: str, *more: str) -> list[str]:
    return ["--env", "coin.py:Coin", "--agent", agent, "--tasks", "6", "-n", "2", "--out", out, *more]


@pytest.fixture
def agent(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delitem(sys.modules, "manners", raising=False)  # of another test's folder
    (project / "agent.py").write_text(AGENT)
    (project / "manners.py").write_text('WORDS = "please"\n')
    return "scripted:agent.py:play"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            "manners.py",
            "a change of the agent (manners.py): choose another --out, or delete that folder to start again",
        ),
        ("coin.py", "a change of the environment (coin.py): choose"),
    ],
)
def test_results_from_before_a_change_are_refused(run: Run, project: Path, agent: str, file: str, words: str) -> None:
    assert run(*one(agent, "out"))["episodes_run"] == 12
    episodes = Path("out/episodes.jsonl")
    episodes.write_text("".join(episodes.read_text().splitlines(keepends=True)[:5]))
    with (project / file).open("a") as code:
        code.write("\n# another one\n")
    before = sorted((p.name, p.read_bytes()) for p in Path("out").iterdir())
    assert words in run(*one(agent, "out"), code=2)["error"]
    assert before == sorted((p.name, p.read_bytes()) for p in Path("out").iterdir())
    assert run(*one(agent, "out2"))["episodes"] == 12


def test_a_folder_without_results_takes_other_settings_and_other_code(run: Run, project: Path, agent: str) -> None:
    assert run(*one(agent, "out", "--step-seconds", "1e-9"), code=1)["faults"] == {"EnvError": 12}
    with (project / "coin.py").open("a") as code:
        code.write("# mended\n")
    result = run(*one(agent, "out", "--seed", "3"))
    assert (result["episodes"], result["faults_retried"], result["dropped_faults"]) == (12, 0, True)
    assert json.loads(Path("out/plan.json").read_text())["seed"] == 3
    plan = Path("none/plan.json")
    plan.parent.mkdir()
    plan.write_text(json.dumps({"version": 99, "env": "something else"}))
    assert run(*one(agent, "none"))["episodes_run"] == 12
    assert json.loads(plan.read_text())["env"] == "coin.py:Coin"


def test_a_folder_of_something_else_or_in_use_is_refused(run: Run) -> None:
    Path("out").mkdir()
    descriptor = os.open("out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "another process evaluates into out" in run(*coin("play", "out"), code=2)["error"]
    os.close(descriptor)
    Path("out/notes.txt").touch()
    assert "out holds other files" in run(*coin("play", "out"), code=2)["error"]
    assert "cannot be opened: File exists" in run(*coin("play", "coin.py"), code=2)["error"]


@pytest.mark.parametrize(("words", "changes"), [(row[0], row[1:]) for row in rows(__file__, "eval_mistakes.tsv")])
def test_a_mistake_is_one_sentence(run: Run, changes: list[str], words: str) -> None:
    check_mistake(run, changes, words)


def check_mistake(run: Run, changes: list[str], words: str) -> None:
    """An evaluation with these changes is refused by a sentence with these words, and leaves nothing."""
    options = {"env": "math", "agent": "scripted:expert", "n": "1", "tasks": "2", "out": "out"}
    options |= (change.split("=", 1) for change in changes)
    arguments = [text for key, value in options.items() for text in ("-n" if key == "n" else f"--{key}", value)]
    error = run(*arguments, code=2)["error"]
    assert words in error and "secret" not in error
    assert not Path("out").exists()


def test_a_checkpoint_has_the_limits_and_the_thinking_of_its_training(project: Path) -> None:
    math = make("math")
    assert limits_of("checkpoint:run", math) == limits_of("scripted:expert", math) == EpisodeLimits()
    assert thinking_of("vllm:run") is thinking_of("scripted:expert") is None
    file = project / "run/config.yaml"
    file.parent.mkdir()
    env = {"name": "math", "max_turns": 3, "max_tokens": 512, "on_fault": "refill"}
    for more, thinking, tokens in (({"thinking": "on", "max_thinking_tokens": 9}, "on", 9), ({}, None, 0)):
        file.write_text(json.dumps({"env": env | more}))  # JSON is YAML
        limits = EpisodeLimits(max_turns=3, max_tokens=512, max_thinking_tokens=tokens)
        for name in ("run", "run@best", "run@40"):
            assert limits_of(f"checkpoint:{name}", math) == limits and thinking_of(f"checkpoint:{name}") == thinking
    file.write_text("[")
    with pytest.raises(UserError, match=r"config\.yaml cannot be read"):
        limits_of("checkpoint:run", math)


@pytest.mark.parametrize("kind", ["checkpoint", "vllm"])
def test_an_evaluation_of_a_run_that_goes_on_is_of_one_step(tiny_model: Path, project: Path, kind: str) -> None:
    """The plan names the step; a later step is another agent, and weights of that step that changed are found."""
    factory, metrics = make("math"), project / "run" / "metrics.jsonl"
    tasks = factory.tasks("test", count=1)

    def reach(step: int) -> Path:
        checkpoint = project / f"run/checkpoints/step_{step:06d}"
        shutil.copytree(tiny_model, checkpoint / "model")
        (checkpoint / "forge_env.json").write_text("{}")
        with metrics.open("a") as file:
            file.write(json.dumps({"phase": "evaluation", "step": step, "success": step / 100}) + "\n")
        return checkpoint / "model"

    def plan(name: str) -> dict[str, Any]:
        return EvalPlan(env="math", agent=f"{kind}:{name}").to_dict(factory, tasks)

    model = reach(40)
    with EvalFolder(project / "out", plan("run@best")) as folder:
        folder.begin()
        folder.add(Episode(task=tasks[0], reward=0.0, id=f"{tasks[0].id}/0"))
    assert json.loads((project / "out/plan.json").read_text())["agent"] == f"{kind}:run@40"
    reach(60)
    for name, words in (("run@best", f"(agent '{kind}:run@40')"), ("run", "other settings (agent ")):
        with pytest.raises(UserError, match=re.escape(words)), EvalFolder(project / "out", plan(name)):
            pass
    with EvalFolder(project / "out", plan("run@40")):
        pass
    (model / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match=r"the agent \(model.safetensors"), EvalFolder(project / "out", plan("run@40")):
        pass


DUNGEON = '''\
from forge_env import Env, Task


class Dungeon(Env):
    """Thirty rooms in a row; the way out is behind the last one."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        return [Task(prompt=({"role": "user", "content": f"dungeon {i}"},)) for i in range(count)]

    @classmethod
    def limits(cls, *, rooms: int = 30):
        return {"max_turns": rooms}

    def __init__(self, rooms: int = 30):
        self.rooms = rooms

    def success(self, reward):
        return reward > 0.5

    def reset(self, *, seed=None, options=None):
        self.room = 0
        return options["task"].prompt, {}

    def step(self, action):
        self.room += 1
        out = self.room == self.rooms
        return [{"role": "user", "content": f"room {self.room}"}], 0.8 * out, out, False, {}


def walk(messages):
    return {"role": "assistant", "content": "on"}
'''


def dungeon(out: str, *more: str) -> list[str]:
    Path("dungeon.py").write_text(DUNGEON)
    fixed = ["--env", "dungeon.py:Dungeon", "--agent", "scripted:dungeon.py:walk", "--tasks", "3"]
    return with_changes([*fixed, "--out", out], more)


def test_an_episode_has_the_turns_and_the_success_that_its_environment_declares(run: Run) -> None:
    result = run(*dungeon("out"))
    assert (result["avg@1"], result["reward"], result["turns"]) == (1.0, pytest.approx(0.8), 90)
    assert [e.success for e in read_jsonl(Path("out/episodes.jsonl"))] == [True] * 3
    assert run(*dungeon("long", "--option", "rooms=70"))["turns"] == 210
    cut = run(*dungeon("cut", "--max-turns", "29"))
    assert (cut["avg@1"], cut["outcomes"], cut["limits"]["max_turns"]) == (0.0, {"truncated": 3}, 29)
    assert run(*dungeon("other", "--agent", "scripted:null", "--max-turns", "40"))["turns"] == 90


def test_what_ended_an_episode_is_named(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run(*dungeon("out", "--max-turns", "29"))
    lines = [replace(e, ended_by="max_turns") for e in read_jsonl(Path("out/episodes.jsonl"))]
    Path("out/episodes.jsonl").write_text("".join(e.to_json() + "\n" for e in lines))
    assert run(*dungeon("out", "--max-turns", "29"))["ended_by"] == {"max_turns": 3}
    assert main(["eval", *dungeon("out", "--max-turns", "29")]) == 0
    assert "note: 3 of 3 episodes were ended by max_turns (29): --max-turns sets it" in capfd.readouterr().err
    early = replace(lines[1], turns=lines[1].turns[:9])
    short = replace(lines[0], ended_by="context", info={**lines[0].info, "context_tokens": 1024})
    Path("out/episodes.jsonl").write_text("".join(e.to_json() + "\n" for e in (short, early, lines[2])))
    assert main(["eval", *dungeon("out", "--max-turns", "29")]) == 0
    words = "of 3 episodes was ended by the agent's own context of 1,024 tokens, which is below max_tokens (4096)"
    assert f"note: 1 {words}: no option raises it\n" in (notes := capfd.readouterr().err)
    assert "note: 1 of 3 episodes was ended by the environment's own number of turns, which is below max_turns" in notes
    assert "note: 1 of 3 episodes was ended by max_turns (29): --max-turns sets it" in notes


def test_limits_that_make_no_sense_are_a_sentence(run: Run) -> None:
    arguments = dungeon("out")
    for was, words in (("{'max_turn': 3}", "limit 'max_turn'. Did you mean max_turns?"), ("{'max_turns': 0}", "= 0")):
        Path("dungeon.py").write_text(DUNGEON.replace('{"max_turns": rooms}', was))
        assert words in run(*arguments, code=2)["error"]


def test_the_expert_of_code_exec_solves_its_tasks_and_nobody_does_not(run: Run) -> None:
    for agent, expected in (("expert", 1.0), ("null", 0.0)):
        arguments = ["--env", "code_exec", "--option", "level=4", "--agent", f"scripted:{agent}", "--tasks", "4"]
        result = run(*arguments, "--out", agent)
        assert (result["avg@1"], result["episodes"], result["faults"]) == (expected, 4, {}), agent


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_disk_that_is_full_is_one_sentence_and_loses_nothing(run: Run, size: int) -> None:
    """By a real limit of the process: no file may grow beyond it."""
    arguments = coin("play", "out", "--concurrency", "6")
    code = "import resource, sys; from forge_env.cli.main import main; "
    code += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); sys.exit(main(['eval', *sys.argv[1:]]))"
    # No bytecode: a file of it that is cut at the limit breaks later processes.
    full = in_a_process(arguments, code=("-c", code), PYTHONDONTWRITEBYTECODE="1")
    assert (full.returncode, full.stderr.count("\n")) == (1, 1), full.stderr
    file = "plan.json" if size == 100 else "episodes.jsonl"
    assert f"error: out/{file} cannot be written: File too large; the same command resumes" in full.stderr
    done = len(records("out")) if size > 100 else 0
    assert (size == 100 or 0 < done < 48) and not Path("out/eval.json").exists()
    assert figures(run(*arguments)) == figures(run(*coin("play", "whole")))


def test_the_bar_shows_success_faults_tokens_and_cost(project: Path) -> None:
    """On a real terminal, of which the process is told by a pseudo one."""
    import pty

    (project / "broken").touch()
    ours, theirs = pty.openpty()
    arguments = coin("play", "out", "--price-completion", "1", "--concurrency", "1", n=1)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "COLUMNS": "200", "TERM": "xterm"}
    command = [sys.executable, "-m", "forge_env", "eval", *arguments]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environ)
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    assert process.wait(60) == 0
    os.close(ours)
    text = shown.decode()
    assert "scripted:coin.py:play in coin.py:Coin" in text and "success 0." in text
    assert "faults" in text and "cost 0.0000" in text
