"""Admission: which turns go to the engine, and the places in its cache."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

PLACES = ("test_admission.py",)
COST = ("test_prompt_cost.py",)

MUTANTS = (
    Mutant(
        name="turns begin whether they fit or not",
        function="Admission._make_room",
        old="if self._running and self.used - self._kept_tokens > share * self.capacity:",
        new="if False:",
        tests=PLACES,
    ),
    Mutant(
        name="a turn waits although nothing runs",
        function="Admission._make_room",
        old="if self._running and self.used",
        new="if self.used",
        tests=PLACES,
    ),
    Mutant(
        name="prefixes are kept however slow the tools are",
        function="Admission._make_room",
        old="(self._mean_wait or 0.0) > keep",
        new="False",
        tests=PLACES,
    ),
    Mutant(
        name="a cancelled turn keeps its place",
        function="Admission.abandoned",
        old="self._uncount(turn)",
        new="pass",
        tests=PLACES,
    ),
    Mutant(
        name="a conversation that has ended keeps its place",
        function="Admission.ended",
        old="self._uncount(turn)",
        new="pass",
        tests=PLACES,
    ),
    Mutant(
        name="places outlive the weights that computed them",
        function="Admission.forget_prefixes",
        old="self._drop_oldest()",
        new="break",
        tests=PLACES,
    ),
    Mutant(
        name="siblings count their prompt each",
        function="Admission._count",
        old="(self._first_prompts[turn.shared] == 1)",
        new="1",
        tests=PLACES,
    ),
    Mutant(
        name="a conversation with a place waits behind new ones",
        function="Admission.arrive",
        old="queue = 0",
        new="queue = 2",
        tests=PLACES,
    ),
    Mutant(
        name="noise counts as the cost of prompts",
        function="PromptCost.seconds",
        old="both * both > _LEAST_EXPLAINED * tokens * seconds",
        new="True",
        tests=COST,
    ),
)
