"""The command of every policy-gradient algorithm, and of an algorithm in a file of your own.

    python -m trainers.train my_file.py:MINE --env math
    python -m trainers.train my_file.py:MINE --help        # its options

`python -m trainers.grpo` is the same as `python -m trainers.train trainers.grpo:GRPO`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.setup.run_plan import RunPlan


async def train(plan: RunPlan) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient(plan)


def main(target: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line for the algorithm of a target, such as "trainers.grpo:GRPO"; returns the exit code.

    The target is imported by its name: the trainer's process imports the loss, so the loss must not belong to __main__.
    """
    from trainers.setup.entry import main as enter

    return enter(target, train, arguments)


if __name__ == "__main__":
    target, *options = sys.argv[1:] or [""]
    if target in ("--help", "-h"):
        print(__doc__)
        sys.exit()
    if not target or target.startswith("-"):
        print("error: name the algorithm first: python -m trainers.train my_file.py:MINE OPTIONS", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(target, options))
