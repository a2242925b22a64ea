"""`python -m trainers` says what may follow."""

import sys

from trainers.setup.options.first_look import ALGORITHMS

print(f"error: name the algorithm, one of {', '.join(ALGORITHMS)}: python -m trainers.grpo OPTIONS", file=sys.stderr)
sys.exit(2)
