"""Trainers: `train` in Python, `python -m trainers.grpo`, `python -m trainers.sft`. Nothing heavy is imported here."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.api import train, train_async
    from trainers.run.training_run import Callback, TrainingRun

__all__ = ["Callback", "TrainingRun", "train", "train_async"]

# While Python looks for the module of `python -m`, argv is ["-m"]; another program may import this package at that
# time.
if sys.argv[:1] == ["-m"]:
    import forge_env  # noqa: F401 (from here on Ctrl-C leaves one sentence)
    from trainers.metrics.heartbeat import announce, quiet, trainer_of

    if trainer_of(sys.orig_argv):
        import importlib.util

        from forge_env.core.errors import UserError
        from forge_env.utils.secret_values import masked_text
        from trainers.setup.packages import check_ours, missing

        try:
            check_ours()  # before anything of them is imported
            if importlib.util.find_spec("torch") is None:  # the gym half
                raise UserError(missing("torch"))
            announce(sys.orig_argv)  # torch takes seconds to import
            from trainers.setup.options.first_look import check_command

            check_command(trainer_of(sys.orig_argv).rpartition(".")[2])
        except UserError as error:
            quiet()
            print(masked_text(f"error: {error}"), file=sys.stderr)
            sys.exit(2)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trainers' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{'api' if name.startswith('train') else 'run.training_run'}"), name)
