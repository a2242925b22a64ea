"""Compares expressions by math-verify, in a helper process.

The process starts with the first comparison, and ends with its owner, or with the environment factory that shares it.
Only processor time counts against a comparison, so that a busy machine makes no answer wrong.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from envs.math.worker import CPU_SECONDS, WALL_SECONDS
from envs.processes.helper import HelperProcess
from forge_env.core.errors import EnvError, ServiceError, UserError
from forge_env.utils.threads import invoke


def is_installed() -> bool:
    return importlib.util.find_spec("math_verify") is not None


def require_math_verify() -> None:
    if not is_installed():
        raise UserError(
            "math-verify is not installed, and answers that are no numbers are graded by it: "
            "pip install 'forge-env[math]'"
        )


@asynccontextmanager
async def open_verifier() -> AsyncIterator[Verifier]:
    """Stop the helper process at the end, for an environment that shares it."""
    try:
        yield _verifier
    finally:
        await invoke(_verifier.close)


class Verifier(HelperProcess):
    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        super().__init__(str(Path(__file__).with_name("worker.py")), name="the math grader")
        self._cpu_seconds = cpu_seconds

    def check_installed(self) -> None:
        require_math_verify()

    def compare(self, target: str, answer: str, tolerance: float = 0.0, unevaluated: bool = False) -> bool:
        """Tell whether two LaTeX expressions are equal. An answer that takes too much time or memory is not.

        Args:
            tolerance: relative; it counts for values only.
            unevaluated: permits operations in an answer that the target does not have.
        """
        request = {"target": target, "answer": answer, "tolerance": tolerance, "unevaluated": unevaluated}
        return _verdict(self.ask(request | {"cpu_seconds": self._cpu_seconds}, seconds=2 * WALL_SECONDS), target)

    def enforced(self) -> dict[str, Any]:
        if not is_installed():
            return {"missing": ["math-verify is not installed, so there is no helper process"]}
        return super().enforced()


def _verdict(response: Mapping[str, Any], target: str) -> bool:
    lines: list[str] = response["written"]
    if lines == ["unreadable"]:
        return False  # it was compared as text before
    if lines[:1] != ["target"]:
        raise EnvError(f"the target {target[:100]!r} takes the math grader too long to read")
    if len(lines) > 1:
        return lines[1] == "equal"
    if response["exit_code"] == -signal.SIGPROF:
        return False
    raise ServiceError(f"the math grader's work ended with status {response['exit_code']}")


_verifier = Verifier()
_verifier.end_with_owner()
equal_expressions = _verifier.compare
