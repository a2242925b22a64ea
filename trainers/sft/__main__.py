"""`python -m trainers.sft`."""

import sys

from trainers.api import main

if __name__ == "__main__":
    sys.exit(main("sft"))
