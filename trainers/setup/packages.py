"""Checks that the packages of a run are installed, and that ours are not shadowed by others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from forge_env.core.errors import UserError

OURS = ("forge_env", "sandboxes", "envs", "agents", "trainers", "contrib")
STACK = {"torch": "torch", "vllm": "vllm", "torchtitan": "torchtitan", "monarch": "torchmonarch"}
"""Module -> the name under which it is installed."""


def check_packages() -> None:
    """Check that our packages are ours, and that the stack is installed."""
    check_ours()
    for package in missing_packages():
        raise UserError(missing(package))


def missing(package: str) -> str:
    """The sentence for a package of the stack that is not installed."""
    return (
        f"{package} is not installed, and training needs it: run `make setup` in a checkout, or install forge-env with "
        "its extra cpu or gpu as docs/installing.md says"
    )


def check_ours() -> None:
    if __name__.startswith("forge_env."):
        return  # below forge_env, as the wheel installs them, they share no name with others
    root = Path(__file__).resolve().parents[2]
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parents[1] != root:
            raise UserError(
                f"the package {name!r} that Python finds is {origin}, not forge_env's in {root}: "
                f"another installed package has the same name; run from {root}, or uninstall the other one"
            )


def missing_packages() -> list[str]:
    return [package for module, package in STACK.items() if importlib.util.find_spec(module) is None]
