"""An answer that the engine itself calls broken reaches nobody as an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agents.generator.engine_thread import EngineThread
from agents.generator.requests import Answers
from agents.generator.settings import EngineSettings
from forge_env.core.errors import PolicyError, TurnRefused


@pytest.mark.parametrize(
    ("reason", "grammar", "kind"),
    [
        ("abort", "", PolicyError),
        ("abort", "{}", PolicyError),
        ("error", "", PolicyError),
        ("error", "{}", TurnRefused),
    ],
)
async def test_a_broken_answer_of_the_engine_is_an_error(reason: str, grammar: str, kind: type[Exception]) -> None:
    answers = Answers()
    answers.attach()
    thread = EngineThread("m", EngineSettings(), answers)
    output = SimpleNamespace(request_id="r", finished=True, outputs=[SimpleNamespace(finish_reason=reason)])
    thread.engine = SimpleNamespace(step=lambda: [output])
    future = answers.future()
    request: Any = SimpleNamespace(scores_prompt=False, sampling=SimpleNamespace(grammar=grammar), future=future)
    thread.pending["r"] = request
    thread._step()
    with pytest.raises(kind):
        async with asyncio.timeout(20):
            await future
