"""`python -m trainers.sft`."""

import sys

from trainers.sft.train import main

if __name__ == "__main__":
    sys.exit(main())
