"""`forge-env eval` of a model behind an endpoint: its key, its faults, its limits, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contrib.chat.tests.conftest import Asked, ChatServer
from forge_env.cli.main import main
from forge_env.core.errors import UserError
from forge_env.evaluation.digests import depends_on
from forge_env.registry.agent_spec import AgentSettings, open_agent
from forge_env.rollout.factory import make
from tests.forge_env.cli.test_eval_cli import Run, check_mistake, run  # noqa: F401 (a fixture)
from tests.helpers.rows import rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    return "sk-very-secret"


def _solve(asked: Asked) -> str:
    from envs.math.env import Math, _expression, _read, calculate

    question = next(m["content"] for m in asked.body["messages"] if m["role"] == "user")
    assert Math.expert is not None
    return calculate(_expression(*_read(question)))


def test_an_endpoint_is_an_agent_and_its_key_is_written_nowhere(run: Run, chat_server: ChatServer, key: str) -> None:  # noqa: F811
    chat_server.will(chat_server.fails(500, "hiccup"), chat_server.replies(_solve))
    prices = ["--price-prompt", "1e6", "--price-completion", "2e6"]
    arguments = f"--env math --agent openai:some@model@{chat_server.url} -n 2 --tasks 3 --out out".split()
    result = run(*arguments, "--concurrency", "2", "--temperature", "0.5", "--top-p", "0.9", *prices)
    assert (result["avg@2"], result["episodes"], result["faults"]) == (1.0, 6, {})
    assert (result["prompt_tokens"], result["completion_tokens"], result["tokens"]) == (42, 18, 60)
    assert result["cost"] == pytest.approx(42 + 36)
    assert {a.body["model"] for a in chat_server.asked} == {"some@model"}
    assert {(a.body["temperature"], a.body["top_p"]) for a in chat_server.asked} == {(0.5, 0.9)}
    assert {a.authorization for a in chat_server.asked} == {f"Bearer {key}"}
    assert chat_server.most_at_once <= 2
    assert [p.name for p in Path("out").iterdir() if key in p.read_text()] == []


def test_an_endpoint_that_does_not_answer_leaves_faults(run: Run, chat_server: ChatServer, key: str) -> None:  # noqa: F811
    chat_server.will(chat_server.replies(_solve), chat_server.fails(400, "no such thing"))
    arguments = ["--env", "math", "--agent", f"openai:m@{chat_server.url}", "--tasks", "3", "--out", "out"]
    first = run(*arguments, "--concurrency", "1")
    assert (first["episodes"], first["faults"]) == (1, {"PolicyError": 2})
    chat_server.will(chat_server.replies(_solve))
    second = run(*arguments)
    assert (second["episodes"], second["avg@1"], second["faults"], second["faults_retried"]) == (3, 1.0, {}, 2)


def test_the_full_context_of_an_endpoint_is_named_as_its_own(
    run: Run,  # noqa: F811
    chat_server: ChatServer,
    key: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    chat_server.will(chat_server.fails(400, "prompt is too long: 9 tokens > 8 maximum"))
    assert main(["eval", "--env", "math", "--agent", f"openai:m@{chat_server.url}", "--tasks", "1", "--out", "o"]) == 0
    words = "note: 1 of 1 episodes was ended by the endpoint's own context: start its server with a larger one; "
    assert f"{words}--max-tokens (4096) does not raise it\n" in capfd.readouterr().err


def test_a_dead_endpoint_is_tried_for_a_few_episodes_only(run: Run, chat_server: ChatServer, key: str) -> None:  # noqa: F811
    chat_server.will(chat_server.fails(400, "no such thing"))
    arguments = ["--env", "math", "--agent", f"openai:m@{chat_server.url}", "--tasks", "40", "--out", "out"]
    error = run(*arguments, "--concurrency", "2", code=1)["error"]
    assert "4 episodes in a row have no answer of the endpoint" in error and "HTTP 400: no such thing" in error
    assert len(chat_server.asked) <= 6 and not Path("out/eval.json").exists()
    chat_server.will(chat_server.replies(_solve))
    assert run(*arguments)["episodes"] == 40


async def _silence() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


def test_the_time_outs_of_an_endpoint_are_options(run: Run, chat_server: ChatServer, key: str) -> None:  # noqa: F811
    """Whole answers have a time; streamed ones may take as long as they do not fall silent, or have one as well."""
    start = {"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": None}]}
    common = ["--env", "math", "--agent", f"openai:m@{chat_server.url}", "--tasks", "1"]
    both = ["--idle-seconds", "60", "--answer-seconds", "0.2"]
    for out, options, behaviour, words in (
        ("whole", ["--answer-seconds", "0.2"], chat_server.waits(), "did not answer within 0.2 s"),
        ("idle", ["--idle-seconds", "0.2"], chat_server.streams(start, more=_silence()), "sent nothing for 0.2 s"),
        ("both", both, chat_server.streams(start, more=_silence()), "ChatAgent did not answer within 0.2 s"),
    ):
        chat_server.will(behaviour)
        result = run(*common, "--out", out, *options, code=1)
        assert words in result["first_errors"]["PolicyError"]
        assert chat_server.asked[-1].body.get("stream", False) is (out != "whole")


KEYED = """
from forge_env import Task, ToolEnv, reward


class Keyed(ToolEnv):
    def __init__(self, api_key: str):
        super().__init__()

    @classmethod
    def tasks(cls, split, *, count, seed=0):
        return [Task(prompt=({"role": "user", "content": f"{split} {n}"},), target=n) for n in range(count)]

    @reward
    def right(self, answer: str) -> float:
        return float(answer == str(self.task.target))
"""


def test_a_refused_key_ends_it_at_once_and_leaves_no_folder(
    run: Run,  # noqa: F811
    tmp_path: Path,
    chat_server: ChatServer,
    key: str,
) -> None:
    chat_server.will(chat_server.fails(401, f"bad key {key}"))
    (tmp_path / "keyed.py").write_text(KEYED)
    options = ("--option", "api_key=of-a-service", "--tasks", "3", "--out", "out")
    error = run("--env", "keyed.py:Keyed", "--agent", f"openai:m@{chat_server.url}", *options, code=2)["error"]
    assert "refused the API key in the environment variable OPENAI_API_KEY" in error and key not in error
    assert not (tmp_path / "out").exists()


def test_an_endpoint_that_fails_loses_no_other_row_of_a_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], chat_server: ChatServer
) -> None:
    chat_server.will(chat_server.fails(400, "no such thing"))
    (tmp_path / "set.yaml").write_text(f"""
rows:
  - {{env: math, agent: "openai:m@{chat_server.url}", tasks: 9, concurrency: 1}}
  - {{env: math, agent: scripted:expert, tasks: 2}}
""")
    assert main(["eval", "--set", "set.yaml", "--out", "out", "--json"]) == 1
    bad, good = json.loads(capfd.readouterr().out)["rows"]
    assert "have no answer of the endpoint" in bad["error"] and good["error"] is None


def test_an_endpoint_is_its_name_and_the_record_says_so() -> None:
    result = depends_on("openai:m@http://127.0.0.1:1/v1", make("math"), [])
    assert result["agent"] == {} and "what the endpoint serves" in result["not_covered"][-1]


async def test_an_endpoint_computes_with_no_adapter() -> None:
    with pytest.raises(UserError, match="adapter is mine, and a.* does not use it: leave --adapter out"):
        async with open_agent("openai:gpt@http://127.0.0.1:9/v1", AgentSettings(env="math", adapter="mine")):
            pass


@pytest.mark.parametrize(
    ("words", "changes"), [(words, changes) for words, *changes in rows(__file__, "eval_mistakes.tsv")]
)
def test_a_mistake_is_one_sentence(run: Run, changes: list[str], words: str) -> None:  # noqa: F811
    check_mistake(run, changes, words)
