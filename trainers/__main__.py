"""Train by an algorithm in a file of your own.

    python -m trainers my_file.py:MINE --env math
    python -m trainers my_file.py:MINE --help        # its options

`python -m trainers.grpo` is the same as `python -m trainers grpo`.
"""

import sys

from trainers.setup.options.first_look import ALGORITHMS

if __name__ == "__main__":
    target, *options = sys.argv[1:] or [""]
    if target in ("--help", "-h"):
        print(__doc__)
        sys.exit()
    if not target or target.startswith("-"):
        names = ", ".join(ALGORITHMS)
        print(
            f"error: name the algorithm, one of {names}: python -m trainers.grpo OPTIONS; or your own: "
            "python -m trainers my_file.py:MINE OPTIONS",
            file=sys.stderr,
        )
        sys.exit(2)
    from trainers.api import main

    sys.exit(main(target, options))
