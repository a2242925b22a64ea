"""Settings by the names that other libraries give them: TRL, verl, OpenRLHF, verifiers and prime-rl, torchforge.

"did you mean" looks here first, and docs/coming_from.md shows the most used ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

ALGORITHM = "ALGORITHM"
"""Stands for the section of the run's algorithm, such as "grpo"."""
OUR_NAMES: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Our name -> the names of others, with as many parts from the right as tell them apart. Of several that lead to ours
the first counts that a run has: reinforcement learning has no epochs. Nothing here does what the last ones do."""


def names_of_others() -> list[str]:
    return [name for names in OUR_NAMES.values() for name in names.split()]


def our_name(theirs: str, algorithm: str, names_here: Collection[str]) -> str:
    """Our name of a setting that has another name elsewhere; "" if there is none in this run.

    >>> our_name("actor_rollout_ref.rollout.n", "grpo", {"grpo.n_samples"})
    'grpo.n_samples'

    Args:
        theirs: a dotted name. Its last parts count, as many as are known; a section of ours stays.
    """
    parts = theirs.split(".")
    for name in (".".join(parts[i:]) for i in range(len(parts))):
        ours = [ours.replace(ALGORITHM, algorithm) for ours, names in OUR_NAMES.items() if name in names.split()]
        same_section = [f"{parts[0]}.{one.rpartition('.')[2]}" for one in ours]
        if here := [one for one in (*same_section, *ours) if one in names_here]:
            return here[0]
    return ""
