"""What follows from the options of a run, row by row: processes, settings and lines of its plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.helpers.plans import plan_of
from trainers.setup.describe import describe_plan, describe_services, describe_settings
from trainers.setup.run_plan import RunPlan

FOLDER = Path(__file__).parent
PLACES = {
    "{guide}": str(FOLDER / "data" / "torchforge_guide.yaml"),
    "{cabinet}": f"{FOLDER.parents[2]}/examples/filing_cabinet.py:FilingCabinet",
}
CASES = (FOLDER / "plan_facts.txt").read_text(encoding="utf-8").strip().split("\n\n")
"""Each has comments, a command's options (the first word is its algorithm, and cores=N is the machine), and facts."""


def facts(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """A plan's lines, its settings, its processes by service, replica and rank, and a few numbers."""
    yield from describe_plan(plan)
    yield from ((name, value) for _, name, value, *_ in describe_settings(plan))
    for process in plan.placement.processes:
        name = f"{process.service} {process.replica}.{process.rank}"
        yield name, f"{process.where}; {process.part}" if process.part else process.where
    yield from (("problem", problem) for problem in plan.problems)
    yield from (("missing", text) for text in plan.missing)
    yield "services", describe_services(plan)
    yield "GPUs", f"{plan.placement.gpus_needed}{' shared' if plan.placement.shares_gpus else ''}"
    yield from ((f"trainer.{field.name}", f"{getattr(plan.trainer, field.name)}") for field in fields(plan.trainer))
    yield "rate", f"{plan.rate.learning_rate:g}, {plan.rate.lr_schedule}"
    yield "rising steps", str(plan.rising_steps)
    yield "old logprobs", f"{plan.old_logprobs}, {plan.window}"
    yield "reference", (plan.objective and plan.objective.kl_reference) or "none"
    yield "replay", f"{plan.replays_routes}, trainer {plan.trainer.replay}"


def matches(value: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, text.split("*"))), value) is not None


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_what_follows_from_the_options(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact is `name: text`, with * for any part; `name: -` is none, and `name ~ text` one of several."""
    monkeypatch.setattr("trainers.setup.options.read_config.gpus_available", lambda: 0)
    monkeypatch.setenv("CC", "cc")
    options, *expected = [line for line in case.splitlines() if not line.startswith("#")]
    for place, path in PLACES.items():
        options = options.replace(place, path)
    algorithm, *words = options.split()
    if words and words[0].startswith("cores="):
        cores = set(range(int(words.pop(0).removeprefix("cores="))))
        monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    found = list(facts(plan_of(*words, algorithm=algorithm)))
    exact: dict[str, list[str]] = {}
    for line in map(str.strip, expected):
        name, colon, text = line.partition(": ")
        if not colon:
            name, _, text = line.partition(" ~ ")
            assert any(each == name and matches(value, text) for each, value in found), (line, found)
            continue
        exact.setdefault(name, []).extend([] if text == "-" else [text])
    for name, texts in exact.items():
        values = [value for each, value in found if each == name]
        assert len(values) == len(texts) and all(map(matches, values, texts)), (name, values)
