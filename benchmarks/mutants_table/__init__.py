"""The table of mutants, by what they break."""

from __future__ import annotations

from benchmarks.mutants_source import Mutant
from benchmarks.mutants_table import batching, controller, digests, episodes, grading, losses, sandbox, weights

TABLE: tuple[Mutant, ...] = (
    *losses.MUTANTS,
    *batching.MUTANTS,
    *controller.MUTANTS,
    *episodes.MUTANTS,
    *digests.MUTANTS,
    *grading.MUTANTS,
    *sandbox.MUTANTS,
    *weights.MUTANTS,
)
