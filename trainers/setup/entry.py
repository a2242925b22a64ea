"""The way into every trainer: options, checks before anything starts, signals, and one sentence for each mistake."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from forge_env.core.errors import ForgeError, InvariantError, UserError, first_error
from trainers.config import RunConfig
from trainers.setup.checks import check_config
from trainers.setup.packages import check_packages
from trainers.setup.read_config import read_config
from trainers.setup.signals import with_signals

C = TypeVar("C", bound=RunConfig)


def main(config_class: type[C], run: Callable[[C], Awaitable[None]], arguments: Sequence[str] | None = None) -> int:
    """Parse the options, check what can be checked, run; returns the exit code.

    With --dry-run the plan is printed, and nothing runs.

    0 success, 1 a fault of the machinery, 2 a user's mistake, 130 Ctrl-C, 143 SIGTERM.
    """
    options = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in options or "-h" in options:
        from trainers.setup.usage import usage

        print(usage(config_class))
        return 0
    try:
        config = read_config(config_class, options)
        if config.dry_run:
            from trainers.setup.dry_run import dry_run

            return dry_run(config)
        check_packages()
        check_config(config)
        return asyncio.run(with_signals(run(config)))
    except (ForgeError, BaseExceptionGroup) as raised:
        error = first_error(raised)
        if not isinstance(error, ForgeError) or isinstance(error, InvariantError):
            raise  # a bug of ours
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
