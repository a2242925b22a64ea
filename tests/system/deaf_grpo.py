"""`python -m tests.system.deaf_grpo OPTIONS`: trainers.grpo, with engines that load no update."""

from __future__ import annotations

import sys

from tests.system.breakable import DeafActor
from trainers import main
from trainers.run import start

if __name__ == "__main__":
    start.PolicyActor = DeafActor  # type: ignore[misc]
    sys.exit(main("trainers.grpo:GRPO"))
