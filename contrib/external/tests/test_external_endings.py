"""How episodes of external end: what was printed is kept, what was refused is counted, the limit is named."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from agents.scripted import ScriptedAgent
from contrib.external import env
from contrib.external.program import Program
from contrib.external.start_program import start_program
from contrib.external.tests.external_playing import calls, playing, says
from contrib.external.tests.test_external import TASK, command, echo, play
from contrib.records.audit import audit
from forge_env.cli.main import main
from forge_env.core.episode import Episode, Turn, write_jsonl
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.types import Action, EpisodeLimits, Outcome, ToolSpec
from forge_env.evaluation.evaluate import Evaluation
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from forge_env.utils.deadlines import queued
from tests.helpers.waiting import until

EXAMPLE = Path(__file__).resolve().parents[3] / "contrib" / "external" / "examples" / "external_agent.py"
SHORT = EpisodeLimits(max_turns=5, max_tokens=200, max_turn_tokens=20)
"""Less than the program's long prompt."""


class Breaks:
    """An agent that answers once."""

    def __init__(self) -> None:
        self._echo: ScriptedAgent | None = echo()

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        answers, self._echo = self._echo, None
        if answers is None:
            raise PolicyError("the engine is gone")
        return await answers.act(conversation, tools)


ENDINGS: dict[str, tuple[str, dict[str, float], Outcome, str]] = {
    "scored": ("does well", {}, Outcome.SCORED, "environment"),
    "failed": ("fails", {}, Outcome.ENV_FAULT, ""),
    "out of turns": ("asks", {"max_turns": 1}, Outcome.TRUNCATED, "max_turns"),
    "a slow step": ("hangs", {"step_seconds": 2.0}, Outcome.TRUNCATED, "step_seconds"),
    "a slow episode": ("hangs", {"episode_seconds": 2.0}, Outcome.TRUNCATED, "episode_seconds"),
    "a slow start": ("hangs before", {"step_seconds": 1.0}, Outcome.ENV_FAULT, ""),
    "no time left at the start": ("hangs before", {"episode_seconds": 1.0}, Outcome.TIMEOUT, "episode_seconds"),
    "no model": ("asks", {}, Outcome.INFRA_FAULT, ""),
}


@pytest.fixture
def few_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a program that does not end by itself."""
    monkeypatch.setattr(env, "LAST_WORDS_SECONDS", 0.1)


@pytest.fixture
def free_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits count from what the program prints first: a busy machine may take seconds until then."""

    async def start(*arguments: Any) -> Program:
        async with queued():
            program = await start_program(*arguments)
            await until(lambda: program.tail("stdout") and program.tail("stderr"))
        return program

    monkeypatch.setattr(env, "start_program", start)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_what_a_program_printed_is_kept_however_it_ends(
    ending: str, few_last_words: None, free_start: None
) -> None:
    what, limits, outcome, ended_by = ENDINGS[ending]
    agent: Agent = Breaks() if ending == "no model" else echo()
    episode = await play("talks", what, agent=agent, limits=EpisodeLimits(**limits))  # type: ignore[arg-type]
    assert (episode.outcome, episode.ended_by) == (outcome, ended_by), episode.error
    program = episode.info["program"]
    assert program["stdout"].startswith("some output\n" if what == "hangs before" else "some output\nanswered\n")
    assert program["stderr"].startswith("some trouble\n")
    assert Episode.from_json(episode.to_json()).info == episode.info
    assert program.get("exit_code") == {"scored": 0, "failed": 3}.get(ending)
    if outcome is Outcome.TRUNCATED or outcome is Outcome.TIMEOUT:
        assert f"the episode was ended by {ended_by} (" in program["note"]


async def test_what_a_program_printed_is_kept_where_its_close_is_cut_off() -> None:
    async with make("external", command=command("talks", "asks")) as factory:
        made = factory.make()
        await made.reset(seed=0, options={"task": TASK})
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0)  # it waits for the program now
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        program = made.final_info()["program"]
        assert (program["stdout"], program["stderr"]) == ("some output\n", "some trouble\n")


async def test_a_program_without_room_for_an_answer_is_kept_as_well(tiny_model: Path) -> None:
    episode = await play("talks", "full", agent=says(tiny_model, "a"), limits=SHORT)
    assert (episode.outcome, episode.reward, episode.ended_by) == (Outcome.TRUNCATED, 0.0, "max_tokens"), episode.error
    program = episode.info["program"]
    assert (program["stdout"], program["exit_code"]) == ("some output\nanswered\n", 1)
    assert "HTTP Error 400" in program["stderr"]
    note = "the episode was ended by max_tokens (200): the program ended with exit code 1 on that"
    assert program["note"] == note


async def test_a_program_is_told_which_limit_has_ended_it() -> None:
    """It has time to say so itself, and is asked to wait for nothing."""
    episode = await play("talks", "asks", "once", limits=EpisodeLimits(max_turns=1))
    message = "HTTP 503 max_turns the episode was ended by max_turns (1)"
    assert episode.info["program"]["stdout"] == f"some output\nanswered\n{message}\n"
    assert (episode.outcome, episode.info["program"]["exit_code"]) == (Outcome.TRUNCATED, 0)
    assert "refused_requests" not in episode.info, "the end is no refusal"


async def test_a_client_does_not_try_again_when_the_episode_is_over(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path, few_last_words: None
) -> None:
    limits = EpisodeLimits(max_turns=1)
    async with playing(factory, says(tiny_model, "a"), tmp_path, limits=limits) as program:
        client = program.client.with_options(max_retries=5)
        ask = client.chat.completions.create
        await ask(model="m", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.InternalServerError, match="ended by max_turns"):
            await ask(model="m", messages=[{"role": "user", "content": "and?"}])
        episode = await program.episode()
    assert (episode.outcome, episode.ended_by, episode.reward) == (Outcome.TRUNCATED, "max_turns", 0.0)
    assert len(episode.turns) == 1


# ---- refused requests ----


@pytest.mark.parametrize(
    ("options", "counts", "reason"),
    [
        ([{"n": 2}, {"n": 3}, {"stop": [""]}], {"n": 2, "stop": 1}, "3 requests were refused (2 x HTTP 400: n is 2"),
        ([{"path": "/embeddings"}], {"not_found": 1}, "1 x HTTP 404: there is no /v1/embeddings"),
        ([{"messages": [{}]}, {"messages": [{"role": "user"}, 5]}], {"messages": 2}, "messages[0] has no role"),
    ],
)
async def test_refused_requests_are_said_where_nothing_was_asked(options: Any, counts: Any, reason: str) -> None:
    episode = await play("refused", json.dumps(options))
    assert (episode.outcome, episode.reward, episode.turns) == (Outcome.ENV_FAULT, None, ())
    assert "ended with exit code 0 and was answered nothing" in episode.error
    assert reason in episode.error and "asked the model nothing" not in episode.error
    assert episode.info["refused_requests"] == counts
    assert len(episode.info["program"]["refused"]) == len(counts)


async def test_refused_requests_are_counted_in_an_episode_that_goes_on() -> None:
    episode = await play("refused", json.dumps([{"n": 2}, {}, {"n": 2}]))
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 1)
    assert episode.info["refused_requests"] == {"n": 2}
    assert "2 x HTTP 400: n is 2" in episode.info["program"]["refused"][0]
    evaluation = Evaluation(episodes=(episode, episode))
    assert evaluation.refused_requests == {"n": 4}
    assert evaluation.metrics()["refused_requests"] == 4.0
    assert "4 requests refused (n 4)" in str(evaluation)
    odd = replace(episode, info={"refused_requests": ["n"]})
    assert Evaluation(episodes=(odd, replace(odd, info={"refused_requests": {"n": "many"}}))).refused_requests == {}
    assert "refused" not in str(Evaluation(episodes=(await play("reward", "1"),)))


async def test_a_wrong_key_is_said() -> None:
    episode = await play("refused", json.dumps([{"key": "sk-of-somebody-else"}]))
    assert episode.outcome is Outcome.ENV_FAULT
    assert "1 request without the key of a running program came to the gateway meanwhile" in episode.error
    assert "OPENAI_API_KEY" in episode.error


# ---- a full context ----


async def test_a_prompt_that_is_too_long_may_be_shortened(tiny_model: Path) -> None:
    episode = await play("too long", "shortens", agent=says(tiny_model, "fine"), limits=SHORT)
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 0.5, 1), episode.error
    refusal, answer = episode.info["program"]["stdout"].splitlines()
    assert refusal.startswith("HTTP 400 context_length_exceeded This model's maximum context length is exceeded: ")
    assert "and the context 200" in refusal
    assert answer == "fine"
    assert [m["content"] for m in episode.messages] == ["hi", "fine"], "what was refused is no part of the record"
    assert episode.info["refused_requests"] == {"context_length_exceeded": 1}


async def test_a_program_that_gives_up_is_scored(tiny_model: Path, tmp_path: Path) -> None:
    episode = await play("too long", "gives up", agent=says(tiny_model), limits=SHORT)
    assert (episode.outcome, episode.reward, episode.turns) == (Outcome.SCORED, 0.5, ()), episode.error
    assert episode.info["refused_requests"] == {"context_length_exceeded": 1}
    assert Episode.from_json(episode.to_json()) == episode
    write_jsonl(tmp_path / "episodes.jsonl", [episode])
    assert audit(tmp_path / "episodes.jsonl").problems == []


async def test_a_first_prompt_that_is_too_long_is_no_failure_of_the_model(tiny_model: Path) -> None:
    episode = await play("too long", "fails", agent=says(tiny_model), limits=SHORT)
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "1 request was refused (1 x HTTP 400: This model's maximum context length" in episode.error
    scored = await play("too long", "fails", agent=says(tiny_model), limits=SHORT, on_failure="score")
    assert (scored.outcome, scored.reward) == (Outcome.SCORED, 0.0)


@pytest.mark.parametrize("how", [{}, {"stream": True}])
async def test_a_conversation_goes_on_after_a_prompt_that_was_too_long(
    how: Any, factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    agent = says(tiny_model, "one", "two", "three")
    async with playing(factory, agent, tmp_path, limits=SHORT) as program:
        first = (await program.chat("hi")).choices[0].message
        long = "How many pens? " * 400
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as refusal:
                await program.chat("hi", first, long, **how)
            assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "messages")
            assert refusal.value.type == "invalid_request_error"
        second = (await program.chat("hi", first, "and?")).choices[0].message
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await program.client.completions.create(model="m", prompt=long)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await program.chat(long, **how)
        await program.chat("hi", first, "and?", second, "so?")
        episode = await program.end()
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), episode.error
    assert [turn.message["content"] for turn in episode.turns] == ["one", "two", "three"]
    assert [turn.starts_row for turn in episode.turns] == [True, False, False], "one row, as if nothing had been asked"
    assert episode.info["refused_requests"] == {"context_length_exceeded": 4}
    assert episode.tail == ()
    write_jsonl(tmp_path / "episodes.jsonl", [episode])
    assert audit(tmp_path / "episodes.jsonl").problems == []


async def test_the_example_makes_do_with_what_there_is(tiny_model: Path, tmp_path: Path) -> None:
    """Its second prompt has no room: the answer of its tool stands, and is scored."""
    (tmp_path / "grade.py").write_text("def grade(answer):\n    return float(answer == '42')\n")
    options = {"command": shlex.join([sys.executable, str(EXAMPLE)]), "reward": f"{tmp_path}/grade.py:grade"}
    sampled = EpisodeLimits(max_tokens=10_000)
    for _ in range(2):  # the first time it is seen how much room the first turn takes
        agent = says(tiny_model, calls("calculator", expression="6*7"), "It is 42.")
        async with make("external", **options) as factory:
            episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=sampled)
        first = episode.turns[0]
        sampled = EpisodeLimits(max_tokens=len(first.prompt_ids) + len(first.token_ids) + 1)
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 1), episode.error
    program = episode.info["program"]
    assert program["stdout"] == "42\n" and program["stderr"].startswith("the context is full: ")


# ---- the figures of an evaluation ----


def test_an_evaluation_shows_what_was_refused_what_was_ignored_and_why_rows_began(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "says.py").write_text("def model(messages):\n    return {'role': 'assistant', 'content': 'a'}\n")
    line = ["eval", "--env", "external", "--agent", f"scripted:{tmp_path}/says.py:model", "--tasks", "2"]
    line += ["--command", command("refused", '[{"n": 2}, {"seed": 3}, {}]'), "--out", str(tmp_path / "out")]
    assert main([*line, "--json"]) == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert (result["refused_requests"], result["ignored_fields"]) == ({"n": 2}, {"seed": 2})
    assert "2 requests of the programs were refused: n (2)" in err
    assert err.count("answered without these fields, with the number of requests: seed (2)") == 1
    example = result["row_began"]["repeated"]["example"]
    assert result["row_began"] == {"repeated": {"count": 2, "example": example}}
    assert example.endswith("turn 1: it repeats 1 message of an earlier conversation, and adds nothing")
    assert f"2 rows began for the reason repeated, for example in {example}" in err
    line[line.index("--command") + 1], line[-1] = command("refused", '[{"n": 2}]'), str(tmp_path / "faults")
    assert main([*line, "--json"]) == 1
    result = json.loads(capfd.readouterr().out)
    assert result["refused_requests"] == {"n": 2}, "those of the faults as well"
    assert "n is 2" in next(iter(result["first_errors"].values()))
