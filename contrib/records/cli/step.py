"""`forge-env step`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from forge_env.cli.output import Json, emit, note, say, show_table, stdout_to_stderr
from forge_env.utils.run_async import run_async

if TYPE_CHECKING:
    from contrib.records.step import StepAgain


def step(
    run: Annotated[Path, typer.Argument(help="Folder of a training run with a checkpoint.")],
    number: Annotated[int, typer.Argument(help="Number of the optimizer step, from 1.")],
    as_json: Json = False,
) -> None:
    """Train a recorded step again on a CPU in float32, and show what each of its episodes does to loss and gradient."""
    with stdout_to_stderr(as_json), _without_gpus():
        from contrib.records.step import parts_of, train_again

        result = run_async(train_again(run, number))
    if as_json:
        pairs = {name: {"now": now, "recorded": was} for name, (now, was) in parts_of(result).items()}
        emit({"run": str(run), **asdict(result), "compared": pairs})
    else:
        _show(run, result)


@contextmanager
def _without_gpus() -> Iterator[None]:
    """Torch looks for GPUs when it is first asked."""
    name = "CUDA_VISIBLE_DEVICES"
    before = {name: os.environ[name]} if name in os.environ else {}
    os.environ[name] = ""
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def _show(run: Path, result: StepAgain) -> None:
    from contrib.records.step import parts_of

    shapes = Counter((batch["sequences"], batch["length"]) for batch in result.batches)
    forms = ", ".join(f"{count} of {n} x {length}" for (n, length), count in shapes.items())
    weights = f"weights of step {result.weights_step} ({result.weights})"
    say(f"step {result.step} of {run}: {len(result.rows)} episodes, {weights}")
    say(f"{len(result.batches)} micro-batches, sequences x tokens: {forms}" if forms else "nothing is computed")
    table = []
    for number, row in enumerate(result.rows, 1):
        advantage = fmean(row.advantages) if row.advantages else 0.0
        batches = ", ".join(map(str, row.batches)) or "-"
        measures = (f"{row.difference:.2e}", f"{row.loss:+.3e}", f"{row.grad_norm:.3e}")
        tokens = f"{row.tokens:,} of {row.all_tokens:,}"
        facts = (str(number), row.episode, row.env, f"{row.reward:g}", f"{advantage:+.4f}", tokens, batches)
        table.append((*facts, *measures))
    columns = (
        "row",
        "episode",
        "env",
        "reward",
        "advantage",
        "trained",
        "batch",
        "|logprob diff|",
        "loss",
        "grad norm",
    )
    show_table(columns, table)
    rows = [
        (name, f"{now:.6g}", "-" if was is None else f"{was:.6g}", "-" if was is None else f"{now - was:+.1e}")
        for name, (now, was) in parts_of(result).items()
    ]
    show_table(("", "now", "recorded", "difference"), rows)
    say(f"advantages differ from the recorded ones by {result.advantage_difference:.1e} at most")
    for text in result.notes:
        note(text)
