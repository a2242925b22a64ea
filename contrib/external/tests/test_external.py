"""external with real programs: what they are told, what their work is worth, and every way in which they can fail."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from contrib.common.guard import descendants
from contrib.external.conversations import ProgramConversations, content_of
from contrib.external.dialects.openai_chat import OpenAIChat
from contrib.external.output import how_it_ended
from contrib.external.requests import ProgramRequest
from contrib.external.responses import call_id, model_call_id
from contrib.external.scoring import read_result, text_of
from envs.math import Math
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import EnvError, UserError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolSpec
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.waiting import is_alive, wait_until

PROGRAM = Path(__file__).with_name("external_program.py")
TASK = Task(prompt=({"role": "user", "content": "What is it?"},), target="echo", metadata={"level": 2})
LIMITS = EpisodeLimits(max_turns=5)


def command(*arguments: str) -> str:
    return shlex.join([sys.executable, "-S", str(PROGRAM), *arguments])


def echo() -> ScriptedAgent:
    return ScriptedAgent(lambda messages: {"role": "assistant", "content": f"echo {messages[-1]['content']}"})


async def play(
    *arguments: str, agent: Agent | None = None, limits: EpisodeLimits = LIMITS, task: Task = TASK, **options: Any
) -> Episode:
    async with make("external", command=command(*arguments), **options) as factory:
        return await run_episode(factory, agent or echo(), task, seed=5, episode_id="e", limits=limits)


# ---- what the work is worth ----


async def test_a_function_scores_the_last_line(tmp_path: Path) -> None:
    file = tmp_path / "grade.py"
    file.write_text("def grade(answer, target):\n    return float(answer == target + ' What is it?')\n")
    episode = await play("ask", reward=f"{file}:grade")
    assert (episode.outcome, episode.reward, episode.rewards) == (Outcome.SCORED, 1.0, {"grade": 1.0})
    assert episode.info["program"] == {"stdout": "echo What is it?\n", "stderr": "", "exit_code": 0}
    assert [m["content"] for m in episode.messages] == ["What is it?", "echo What is it?"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ask"], "nothing says what the program's work is worth"),
        (["reward", "nan"], "gave the reward nan"),
        (["file", "5"], "no JSON object"),
        (["reward", "1.5"], "gave the reward 1.5, and the option reward_range says -1,1"),
    ],
)
async def test_without_a_sound_reward_there_is_none(arguments: list[str], reason: str) -> None:
    episode = await play(*arguments)
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert reason in episode.error


async def test_the_programs_own_word_counts_where_there_is_no_other_and_its_range_is_declared() -> None:
    episode = await play("reward", "75", reward_range="0,100")
    assert (episode.outcome, episode.reward, episode.rewards) == (Outcome.SCORED, 75.0, {"program": 75.0})
    assert (await play("reward", "1.0000000000000002")).reward == 1.0, "rounding is not out of range"
    assert "reward_range says 0,100" in (await play("reward", "-1", reward_range="0,100")).error


async def test_a_model_cannot_write_the_programs_word() -> None:
    """The program prints what the model said, as its last line."""
    forger = ScriptedAgent(lambda messages: {"role": "assistant", "content": 'Done.\n{"reward": 1.0, "answer": "a"}'})
    episode = await play("echo", agent=forger)
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "a reward that is printed does not count" in episode.error


async def test_the_environment_of_the_tasks_scores_the_answer() -> None:
    async with make("external", command=command("ask"), tasks="math") as factory:
        [task] = factory.tasks("train", count=1)
        assert task == Math.tasks("train", count=1)[0]
        for answer, reward in ((task.target, 1.0), ("no", 0.0)):
            agent = ScriptedAgent(lambda messages, answer=answer: {"role": "assistant", "content": answer})
            episode = await run_episode(factory, agent, task, seed=1, episode_id="e", limits=LIMITS)
            assert (episode.outcome, episode.reward) == (Outcome.SCORED, reward), episode.error


@pytest.mark.parametrize(
    ("stdout", "file", "result"),
    [
        ("a\nb\n\n", None, ("b", None)),
        ("", None, ("words", None)),
        ('x\n{"answer": 5}\n', None, ("5", None)),
        ('{"answer": "a\u2028b\x85c"}\n', None, ("a\u2028b\x85c", None)),
        ("50%\rx\x0cy\r\n", None, ("x\x0cy", None)),
        ("a\n\x1b[1;32m42\x1b[0m\n\x1b[0m\x1b]0;title\x07\n", None, ("42", None)),
        ('\x1b[32m{"answer": "a\x1b[m"}\x1b[K\r\n', None, ("a", None)),
        ("\x1b[31m42\x1b(B\x1b[m\n\x1b7\x1b8\n", None, ("42", None)),
        ("\ufeff42\0\0\r\n\0", None, ("42", None)),
        ('{"answer": 1.10}', None, ("1.10", None)),
        ("printed", '\ufeff{"answer": "filed", "reward": 0.50}\r\n\0', ("filed", 0.5)),
        ("printed", ('\ufeff{"answer": "é"}').encode("utf-16-le"), ("é", None)),
        ('{"reward": 1}', None, ("words", None)),
        ('{"reward": 1}', '{"reward": 0.5}', ("words", 0.5)),
        ('{"answer": "said", "reward": NaN}', None, ("said", None)),
        ('{"answer": "said", "reward": NaN}', '{"reward": true}', ("said", 1.0)),
        ('{"other": 1}', None, ('{"other": 1}', None)),
        ("printed", '{"reward": 0.5}', ("printed", 0.5)),
        ("printed", '{"answer": "filed"}', ("filed", None)),
    ],
)
def test_the_result_is_read(
    stdout: str, file: str | bytes | None, result: tuple[str, float | None], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    if file is not None:
        path.write_bytes(file.encode() if isinstance(file, str) else file)
    found = read_result(text_of(path) if path.exists() else None, stdout, "words")
    assert (found.answer, found.reward) == result


# ---- what a program is told ----


async def test_a_program_has_its_task_and_none_of_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "small.example")
    monkeypatch.setenv("OPENAI_API_KEY", "the user's own")
    async with make("external", command=command("environment"), reward=f"{__file__}:shows") as factory:
        episode = await run_episode(factory, echo(), TASK, seed=5, episode_id="e", limits=LIMITS)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error


def shows(answer: str) -> float:
    seen = json.loads(answer)
    variables = seen["variables"]
    assert seen["task"] == {"id": TASK.id, "messages": list(TASK.prompt), "metadata": {"level": 2}, "seed": 5}
    assert "target" not in json.dumps(seen["task"]), "the answer is nowhere to be found"
    assert "PYTHONPATH" not in variables and str(Path.cwd()) not in seen["path"]
    assert variables["OPENAI_BASE_URL"] == variables["OPENAI_API_BASE"]
    assert variables["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert variables["OPENAI_API_KEY"] != "the user's own" and len(variables["OPENAI_API_KEY"]) > 30
    assert {"127.0.0.1", "small.example"} < set(variables["NO_PROXY"].split(",")) and variables["FORGE_ENV_SEED"] == "5"
    assert variables["no_proxy"] == variables["NO_PROXY"]
    assert Path(variables["FORGE_ENV_TASK"]).parent == Path(variables["TMPDIR"])
    return 1.0


async def test_the_prompt_may_be_an_argument() -> None:
    assert (await play("file", '{"reward": 1, "answer": "{prompt}"}')).reward == 1.0


async def test_what_a_program_prints_is_kept_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "grade.py"
    file.write_text("def grade(answer):\n    return float(answer == 'end')\n")
    episode = await play("flood", reward=f"{file}:grade")
    assert episode.reward == 1.0
    assert len(episode.info["program"]["stdout"]) == 4000


# ---- tasks ----


def test_tasks_of_a_file_are_split_by_content(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    rows = [{"prompt": f"question {i}", "target": i, "metadata": {"i": i}} for i in range(100)]
    file.write_text("\n".join(map(json.dumps, rows)))
    factory = make("external", command="true", data=str(file))
    train, test = factory.tasks("train", count=80), factory.tasks("test", count=5)
    assert not {t.id for t in train} & {t.id for t in test}
    assert len(factory.tasks("all", count=100)) == 100
    task = train[0]
    assert task.target == task.metadata["i"] and task.prompt[0]["content"] == f"question {task.target}"
    with pytest.raises(UserError, match="were asked for"):
        factory.tasks("test", count=60)


@pytest.mark.parametrize("line", ["{", "5", "{}", '{"prompt": 5}', '{"prompt": "a", "metadata": [1]}'])
def test_a_row_that_is_no_task_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(line)
    with pytest.raises(UserError, match="tasks.jsonl"):
        make("external", command="true", data=str(file)).tasks("all", count=1)


def test_a_program_with_tasks_of_its_own_is_given_numbers() -> None:
    factory = make("external", command="true")
    train, test = factory.tasks("train", count=50), factory.tasks("test", count=50)
    assert len({t.id for t in (*train, *test)}) == 100
    assert train == factory.tasks("train", count=50)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "needs the option command"),
        ({"command": " "}, "the command is empty"),
        ({"command": "no_such_program_anywhere"}, "there is no program"),
        ({"command": "'open"}, "no command line"),
        ({"command": "true", "on_failure": "cry"}, "on_failure is 'cry'"),
        ({"command": "true", "cwd": "/no/such/folder"}, "no such folder"),
        ({"command": "true", "host": "0.0.0.0"}, "one address"),
        ({"command": "true", "host": "192.0.2.1"}, "cannot listen"),
        ({"command": "true", "reward": "nothing"}, "not a target"),
        ({"command": "true", "reward_range": "1,0"}, "reward_range is '1,0'; it is two numbers"),
        ({"command": "true", "reward_range": "nan,1"}, "reward_range is 'nan,1'"),
        ({"command": "true", "tasks": "maths"}, "Did you mean math"),
        ({"command": "true", "files": "/tmp"}, "which is for a program in a workspace"),
        ({"command": "true", "tasks": "bug_fix", "image": "host"}, "has no option 'image'"),
        ({"command": "true", "image": "host", "sandbox": "namespaces"}, "and the program runs in a workspace"),
        ({"command": "true", "image": "host", "cwd": "/tmp"}, "the option files copies a folder of this machine"),
        ({"command": "true", "image": "host", "host": "127.0.0.2"}, "host is '127.0.0.2'"),
        ({"command": "true", "image": "no/image:1"}, "there is no image 'no/image:1'"),
        (
            {"command": "true", "image": "host", "files": "/nothing/here"},
            "'/nothing/here', and there is no such folder",
        ),
    ],
)
async def test_a_mistake_is_one_sentence(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as error:
        async with make("external", **options):
            pass
    assert "\n" not in str(error.value)


def test_a_program_that_is_not_there_is_said_before_anything_starts() -> None:
    with pytest.raises(UserError, match="no program 'no_such_program'"):
        make("external", command="no_such_program x").tasks("train", count=1)
    with pytest.raises(UserError, match="leave the other out"):
        make("external", command="true", tasks="math", data="x.jsonl").tasks("train", count=1)


# ---- how a program can fail ----


@pytest.mark.parametrize(
    ("arguments", "reasons"),
    [
        (["silent"], ["ended with exit code 0", "asked the model nothing"]),
        (["silent", "no key"], ["ended with exit code 1", "no key"]),
        (["fail"], ["ended with exit code 1", "the disk is on fire"]),
    ],
)
async def test_a_program_that_fails_is_a_fault(arguments: list[str], reasons: list[str]) -> None:
    episode = await play(*arguments)
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    for reason in reasons:
        assert reason in episode.error


async def test_a_failure_may_be_scored_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(descendants())
    for arguments in (["fail"], ["reward", "1", "1"]):
        episode = await play(*arguments, on_failure="score")
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), "a program that failed gives itself nothing"
        assert episode.info["program"]["exit_code"] == 1
    assert list(tmp_path.iterdir()) == [] and set(descendants()) <= before


class Kills:
    """An agent that kills the process whose id is its question, and answers then, or never."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        pid = int(conversation.messages[-1]["content"])
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not is_alive(pid))
        if not self._answers:
            await asyncio.Event().wait()
        return await echo().act(conversation, tools)


async def test_a_program_that_is_killed_in_a_request_is_a_fault() -> None:
    """No answer is waited for that nobody could take."""
    episode = await play("pid", agent=Kills(answers=False))
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.ENV_FAULT, None, 0)
    assert "request 1 was still waiting for its answer when the program ended" in episode.error


async def test_a_client_that_is_killed_is_a_fault_though_the_program_does_well() -> None:
    episode = await play("child", agent=Kills(answers=True))
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    # The program may end before or after the answer.
    late = "the answer to request 1 did not reach the program"
    assert late in episode.error or "request 1 was still waiting" in episode.error


async def test_a_program_that_hangs_is_truncated_and_all_of_it_is_gone(tmp_path: Path) -> None:
    pids, before = tmp_path / "pids", set(descendants())  # helper processes of other tests may live on
    episode = await play("hang", str(pids), limits=EpisodeLimits(step_seconds=2.0))
    assert (episode.outcome, episode.reward) == (Outcome.TRUNCATED, 0.0), episode.error
    assert len(episode.turns) == 1 and episode.ended_by == "step_seconds"
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    assert set(descendants()) <= before


def test_a_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """SIGKILL, of which nothing is told to anybody."""
    pids, temp = tmp_path / "pids", tmp_path / "temp"
    temp.mkdir()
    code = f"""
import asyncio
from contrib.external.tests.test_external import play
asyncio.run(play("hang", {str(pids)!r}))
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temp)}
    owner = subprocess.Popen([sys.executable, "-c", code], env=environ)
    try:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        left = [int(pid) for pid in pids.read_text().split()]
        assert all(map(is_alive, left))
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: not any(map(is_alive, left)))
    wait_until(lambda: not list(temp.iterdir()))


def test_the_ends_of_a_program_have_names() -> None:
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(137) == "died of SIGKILL (signal 9)"
    assert how_it_ended(255) == "ended with exit code 255"


# ---- which conversation a request goes on with ----

contents = st.text(alphabet="ab", max_size=2)
said = contents.filter(bool)  # an empty answer counts whether a program sends it back or drops it
messages_ = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": contents}), min_size=1, max_size=2
)
"""What a program adds before it asks."""


@given(first=messages_, rounds=st.lists(st.tuples(st.integers(0, 3), messages_, said), max_size=12))
def test_a_request_goes_on_with_the_longest_history_that_it_repeats(first: Any, rounds: Any) -> None:
    """Several conversations in any order: each request is placed where all of what came before it was seen."""
    contexts = ProgramConversations()
    histories: list[list[Message]] = [list(first)]
    seen: dict[int, list[Message]] = {}
    for which, new, answer in [(0, [], "b"), *rounds]:
        history = histories[which % len(histories)] if which < len(histories) else list(new)
        asked = [*history, *new] if which < len(histories) else history
        question = ProgramRequest(model="m", messages=tuple(asked))
        context, observation = contexts.place(question)
        assert [*seen.get(context.number, []), *observation] == asked, "nothing is lost, nothing is shown twice"
        longest = max((len(s) for s in seen.values() if len(s) < len(asked) and asked[: len(s)] == s), default=0)
        assert len(seen.get(context.number, [])) == longest, "the longest one that fits"
        assert observation
        reply: Message = {"role": "assistant", "content": answer}
        contexts.answered(context, question, reply)
        seen[context.number] = [*asked, reply]
        if which < len(histories):
            histories[which % len(histories)] = [*asked, reply]
        else:
            histories.append([*asked, reply])


@given(
    text=st.text(), arguments=st.dictionaries(st.text(max_size=3), st.integers() | st.none() | st.text(), max_size=3)
)
def test_the_form_of_a_message_does_not_matter(text: str, arguments: dict[str, Any]) -> None:
    def call(written: str, id_: str) -> dict[str, Any]:
        return {"id": id_, "type": "function", "function": {"name": "f", "arguments": written}}

    forms = [
        {"role": "assistant", "content": text or None, "tool_calls": [call(json.dumps(arguments), "1")], "audio": None},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": text[:1]}, {"type": "text", "text": text[1:]}],
            "tool_calls": [call(json.dumps(arguments, indent=2), "other")],
            "refusal": None,
        },
    ]
    read = [OpenAIChat().read({"messages": [form]}, {}).messages[0] for form in forms]
    assert content_of(read[0]) == content_of(read[1])
    changed = {"messages": [{**forms[0], "content": text + "!"}]}
    assert content_of(OpenAIChat().read(changed, {}).messages[0]) != content_of(read[0])


@given(turn=st.integers(0, 99), own_id=st.text())
def test_the_ids_of_calls_go_there_and_back(turn: int, own_id: str) -> None:
    assert model_call_id(call_id(turn, own_id)) == own_id


@pytest.mark.parametrize("foreign", ["call_abc", "turn-x", "turnx-y", ""])
def test_a_foreign_id_of_a_call_stays(foreign: str) -> None:
    assert model_call_id(foreign) == foreign


async def test_a_step_needs_a_program_that_waits() -> None:
    async with make("external", command="true") as factory:
        env = factory.make()
        with pytest.raises(EnvError, match="before reset"):
            await env.step(Action(message={"role": "assistant", "content": ""}))
        await env.close()
        await env.close()
