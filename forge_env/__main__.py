"""`python -m forge_env` is `forge-env`."""

import sys

from forge_env.cli.main import main

sys.exit(main())
