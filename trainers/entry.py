"""The way into every trainer: options, checks before anything starts, signals, and one sentence for each mistake."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from forge_env.config import parse
from forge_env.errors import ForgeError, InvariantError, UserError, first_error
from trainers.config import SHORT_OPTIONS, RunConfig, ServiceConfig

C = TypeVar("C", bound=RunConfig)
OURS = ("forge_env", "sandboxes", "envs", "agents", "trainers")
STACK = {"vllm": "vllm", "torchtitan": "torchtitan", "torchstore": "torchstore", "monarch": "torchmonarch"}


def main(config_class: type[C], run: Callable[[C], Awaitable[None]], arguments: Sequence[str] | None = None) -> int:
    """Parse the options, check what can be checked, run; returns the exit code.

    0 success, 1 a fault of the machinery, 2 a user's mistake, 130 Ctrl-C, 143 SIGTERM.
    """
    options = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in options or "-h" in options:
        print(_help(config_class))
        return 0
    try:
        check_packages()
        config = parse(config_class, options, SHORT_OPTIONS)
        check_config(config)
        return asyncio.run(_with_signals(run(config)))
    except (ForgeError, BaseExceptionGroup) as raised:
        error = first_error(raised)
        if not isinstance(error, ForgeError) or isinstance(error, InvariantError):
            raise  # a bug of ours
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1


async def _with_signals(work: Awaitable[None]) -> int:
    """Run `work`; Ctrl-C and SIGTERM cancel it, so that everything it started is ended in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1:
            print("\nstopping: ending every process of this run", file=sys.stderr, flush=True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    except Exception:
        if not received:
            raise
    return 128 + received[0] if received else 0


def check_packages() -> None:
    """Check that our packages are ours, and that the stack is installed.

    Raises:
        UserError: naming a foreign package of the same name, or what is not installed and how to install it.
    """
    root = Path(__file__).resolve().parents[1]
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parents[1] != root:
            raise UserError(
                f"the package {name!r} that Python finds is {origin}, not forge_env's in {root}: "
                f"another installed package has the same name; run from {root}, or uninstall the other one"
            )
    for module, package in STACK.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{package} is not installed, and training needs it: run `make setup`, see README.md")


def check_config(config: RunConfig) -> None:
    """Check a config before anything is started.

    Raises:
        UserError: for an unknown environment or option of it, a number out of range, or more GPUs than there are.
    """
    from forge_env.factory import make

    make(config.env.name, **config.env.options)
    config.env.fault_policy()
    minimum = {
        "training.steps": (config.training.steps, 0),
        "training.batch_size": (config.training.batch_size, 1),
        "training.staleness": (config.training.staleness, 0),
        "dataset.tasks": (config.dataset.tasks, 1),
        "dataset.held_out": (config.dataset.held_out, 1),
    }
    for name, (value, least) in minimum.items():
        if value < least:
            raise UserError(f"--{name} is {value}; it must be at least {least}")
    for name, service in _services(config).items():
        if service.procs != 1:
            raise UserError(
                f"--services.{name}.procs is {service.procs}; this version runs one process for each service"
            )
    _check_gpus(config)


def _services(config: RunConfig) -> dict[str, ServiceConfig]:
    return {"generator": config.services.generator, "trainer": config.services.trainer}


def _check_gpus(config: RunConfig) -> None:
    wanted = {name: service.procs for name, service in _services(config).items() if service.with_gpus}
    if not wanted:
        return
    import torch

    available, needed = torch.cuda.device_count(), sum(wanted.values())
    if needed > available:
        split = ", ".join(f"{name} {count}" for name, count in wanted.items())
        raise UserError(f"the run needs {needed} GPUs, {available} are available: {split}")


def _help(config_class: type[RunConfig]) -> str:
    from forge_env.config import leaves

    lines = ["Options (every one also has its dotted name; --config FILE reads YAML):", ""]
    lines += [f"  --{short:<10} {dotted}" for short, dotted in SHORT_OPTIONS.items()]
    lines += ["", "All settings and their defaults:", ""]
    config = config_class()
    for name, _ in leaves(config):
        value: object = config
        for part in name.split("."):
            value = getattr(value, part)
        lines.append(f"  --{name} {value!r}")
    return "\n".join(lines)
