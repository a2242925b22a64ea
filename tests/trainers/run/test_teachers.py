"""Teachers: which of them is asked for which episode, and what the policy reads as its own teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.renderer.rendering import Renderer
from envs.math import Math
from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task
from tests.helpers.plans import plan_of
from tests.trainers.episodes import turn
from trainers.batching.batch import Sample
from trainers.run.teachers import Teachers

MESSAGES = ({"role": "user", "content": "2 + 2?"},)
TASK = Task(prompt=MESSAGES, target="4")


def teachers(model: Path, asked: list[tuple[str, list[Sample]]], *options: str) -> Teachers:
    given = ["--env=math", "--env=code_exec", f"--model={model}", "--warmup.steps=0", *options]

    async def ask(name: str, samples: Sequence[Sample]) -> list[Any]:
        asked.append((name, list(samples)))
        return [np.full(sample.num_targets, -float(len(name))) for sample in samples]

    return Teachers(plan_of(*given), ask, model)


def of(env: str, prompt: Sequence[int], *outcomes: Outcome) -> Group:
    first = replace(turn(7, 8, logprobs=(-0.5, -0.6)), observation=MESSAGES, prompt_ids=prompt, starts_row=True)
    turns = (first, turn(9, prompt=2, logprobs=(-0.7,)))
    episodes = [
        Episode(task=TASK, turns=turns, outcome=o, reward=1.0 if o.is_valid else None, id=f"{env}{i}", env=env)
        for i, o in enumerate(outcomes)
    ]
    return Group(task=TASK, episodes=tuple(episodes), id=env)


@pytest.fixture(scope="module")
def prompt(tiny_model: Path) -> list[int]:
    renderer = Renderer(tiny_model)
    return renderer.encode(renderer._render(MESSAGES, add_generation_prompt=True))


async def test_each_environment_asks_its_own_teacher(
    tiny_model: Path, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[str]] = []

    async def hint(episode: Episode, siblings: Sequence[Episode]) -> str:
        heard.append([episode.id, *(sibling.id for sibling in siblings)])
        return "" if episode.id == "math2" else f"The answer is {episode.task.target}."

    monkeypatch.setattr(Math, "hint", staticmethod(hint))
    asked: list[tuple[str, list[Sample]]] = []
    made = teachers(tiny_model, asked, "--mixture.math.distill.teacher=self", f"--distill.teacher={tiny_model}")
    groups = [of("math", prompt, Outcome.SCORED, Outcome.INFRA_FAULT, Outcome.TRUNCATED)]
    groups += [of("code_exec", prompt, Outcome.SCORED)]
    answers = await made(groups)
    assert [None if answer is None else answer.tolist() for answer in answers] == [
        [-4.0] * 3, None, [-float(len(str(tiny_model)))] * 3,
    ]  # fmt: skip
    assert heard == [["math0", "math2"], ["math2", "math0"]], "a fault has no hint, and is none"
    (own, [hinted]), (model, [plain]) = asked
    assert (own, model) == ("self", str(tiny_model))
    [row], [before] = hinted.rows, plain.rows
    assert "The answer is 4." in Renderer(tiny_model).decode(row.token_ids)
    for name in ("token_ids", "generator_logprobs", "versions"):
        assert getattr(row, name)[row.loss_mask].tolist() == getattr(before, name)[before.loss_mask].tolist()
    end = len(before.token_ids) - len(prompt)
    assert row.token_ids[-end:].tolist() == before.token_ids[-end:].tolist() and hinted.num_targets == 3


async def test_an_environment_without_a_teacher_and_a_hint_too_long_ask_nobody(
    tiny_model: Path, prompt: list[int]
) -> None:
    asked: list[tuple[str, list[Sample]]] = []
    limits = [f"--env.max_tokens={len(prompt) + 5}", "--env.max_turn_tokens=4"]
    made = teachers(tiny_model, asked, "--mixture.math.distill.teacher=self", *limits)
    assert await made([of("math", prompt, Outcome.SCORED), of("code_exec", prompt, Outcome.SCORED)]) == [None, None]
    assert not asked


async def test_a_hint_that_fails_ends_the_run(
    tiny_model: Path, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = teachers(tiny_model, [], "--mixture.math.distill.teacher=self")
    for hint, sentence in {
        lambda episode, siblings: 1 / 0: "hint of math failed on the episode math0: ZeroDivisionError: division by",
        lambda episode, siblings: None: "hint of math for the episode math0 is None: return a text, empty for no",
    }.items():
        monkeypatch.setattr(Math, "hint", staticmethod(hint))
        with pytest.raises(UserError, match=sentence):
            await made([of("math", prompt, Outcome.SCORED)])
