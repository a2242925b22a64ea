"""Figures by kind of task."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

KINDS = ("test_kinds.py",)

MUTANTS = (
    Mutant(
        name="kinds above the bound have metrics of their own",
        function="Kinds.of",
        old="[:MAX_KINDS]",
        new="[:]",
        tests=KINDS,
    ),
    Mutant(
        name="the rarest kinds keep their names",
        function="Kinds.of",
        old="(-counts[kind], kind)",
        new="(counts[kind], kind)",
        tests=KINDS,
    ),
    Mutant(
        name="a kind whose episodes are all faults divides by zero",
        function="Kinds.training_metrics",
        old="if episode.outcome.is_valid",
        new="if episode.outcome",
        tests=KINDS,
    ),
    Mutant(
        name="a change that may be chance is called better",
        function="KindChange.verdict",
        old="change.p_value < SIGNIFICANT",
        new="change.difference.value",
        tests=KINDS,
    ),
)
