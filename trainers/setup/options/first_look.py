"""The algorithms that `python -m trainers.NAME` starts, and the sentence for any other name."""

from __future__ import annotations

from forge_env.core.errors import UserError, nearest

ALGORITHMS = ("cispo", "dapo", "gspo", "grpo", "reinforce", "sapo", "sft")
COMMANDS = (*ALGORITHMS, "trainers")
"""What `python -m trainers.NAME` starts, and `python -m trainers FILE.py:NAME`."""
_ELSEWHERE = {
    "ppo": "grpo",
    "rloo": "reinforce",
    "dr_grpo": "grpo",
    "drgrpo": "grpo",
    "reinforce_plus_plus": "reinforce",
}
"""Algorithms of others, and the nearest one here."""


def check_command(name: str) -> None:
    if name in COMMANDS:
        return
    names = ", ".join(ALGORITHMS)
    hint = f"Did you mean {_ELSEWHERE[name]}? Available: {names}." if name in _ELSEWHERE else nearest(name, ALGORITHMS)
    raise UserError(
        f"there is no algorithm {name!r}. {hint} An algorithm of your own is started by "
        "python -m trainers my_file.py:MINE"
    )
