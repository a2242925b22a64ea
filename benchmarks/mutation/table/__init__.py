"""The table of mutants, by what they break."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant
from benchmarks.mutation.table import (
    batching,
    controller,
    digests,
    episodes,
    forms,
    grading,
    kinds,
    lora,
    losses,
    objective,
    sandbox,
    verdicts,
    weights,
)

TABLE: tuple[Mutant, ...] = (
    *losses.MUTANTS,
    *objective.MUTANTS,
    *batching.MUTANTS,
    *controller.MUTANTS,
    *episodes.MUTANTS,
    *digests.MUTANTS,
    *grading.MUTANTS,
    *kinds.MUTANTS,
    *sandbox.MUTANTS,
    *weights.MUTANTS,
    *lora.MUTANTS,
    *forms.MUTANTS,
    *verdicts.MUTANTS,
)
