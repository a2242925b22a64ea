"""Grammars that would hold up the engine are refused, by a process with limits of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from contrib.external.grammar_trial import GrammarTrials
from forge_env.core.errors import PolicyError, TurnRefused
from forge_env.core.types import Sampling
from forge_env.registry import contrib
from forge_env.rollout.lockstep import Request
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")
VOCABULARY = 512
GOOD = {"type": "object", "properties": {"pens": {"enum": [1, 2]}}, "required": ["pens"]}
SLOW = {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}
WRONG: list[tuple[Any, str]] = [
    (SLOW, "takes more than 1 s of CPU or too much memory: use .*, no repeats within repeats"),
    ({"enum": []}, "enum array must not be empty"),
    ({"$ref": "#/nowhere"}, "Cannot find field nowhere"),
]


def tag(schema: Any) -> str:
    format_ = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 32}
    return json.dumps({"type": "structural_tag", "format": format_})


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trials(tiny_model: Path) -> AsyncIterator[GrammarTrials]:
    opened = GrammarTrials(str(tiny_model), cpu_seconds=1)
    yield opened
    await opened.close()


@pytest.mark.parametrize(("schema", "sentence"), WRONG, ids=["slow", "enum", "ref"])
async def test_a_grammar_that_would_hold_up_the_engine_is_refused(
    trials: GrammarTrials, schema: Any, sentence: str
) -> None:
    for _ in range(2):  # what is remembered is the same
        with pytest.raises(TurnRefused, match=sentence):
            await trials.check(tag(schema), VOCABULARY)
    await trials.check(tag(GOOD), VOCABULARY)


NO_LIBRARY = """
import time

PACKAGES = ()


def open_library(run_forked):
    def answer(request):
        if "minLength" in request["grammar"]:
            time.sleep(1000)
        return {"problem": ""}

    return answer
"""


async def test_a_killed_process_is_started_again_and_a_closed_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process imports no library of grammars, which takes seconds."""
    (tmp_path / "no_library.py").write_text(NO_LIBRARY)
    monkeypatch.setattr("contrib.external.grammar_trial_process.__file__", str(tmp_path / "no_library.py"))
    trials = GrammarTrials("any")
    await trials.check(tag(GOOD), VOCABULARY)
    assert trials._process is not None
    first = trials._process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
    await trials.check(tag({"type": "string"}), VOCABULARY)
    second = trials._process.pid
    assert second is not None and second != first
    slow = asyncio.create_task(trials.check(tag({**SLOW, "minLength": 0}), VOCABULARY))
    while not trials._process._request:
        await asyncio.sleep(0)
    await trials.close()
    with pytest.raises(PolicyError, match="the engine was closed"):
        await slow
    await asyncio.to_thread(wait_until, lambda: is_gone(second), "the end of the process")


async def test_an_engine_that_closes_meanwhile_answers(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread takes no request any more: one that came after the trial would wait for ever."""
    engine = VLLMEngine(str(tiny_model), EngineSettings())
    engine._answers.attach()
    engine._thread.vocabulary = VOCABULARY

    async def closes(grammar: str, vocabulary: int) -> None:
        engine._is_closed = True

    monkeypatch.setattr(engine._thread.open_grammars(), "check", closes)
    sampling = Sampling(grammar=tag(GOOD))
    async with asyncio.timeout(60):
        with pytest.raises(PolicyError, match="was closed"):
            await engine.generate([1], sampling, "r")
        engine._is_closed = False
        with pytest.raises(PolicyError, match="was closed"):
            await engine.generate_batch([Request((1,), sampling, "r"), Request((1,), Sampling(), "s")])


async def test_an_engine_without_this_folder_refuses_a_grammar(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    engine = VLLMEngine(str(tiny_model), EngineSettings())
    with pytest.raises(TurnRefused, match="no part of contrib/ lets the engine hold an answer to a form"):
        await engine.generate([1], Sampling(grammar=tag(GOOD)), "r")
