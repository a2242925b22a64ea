"""The Berkeley Function Calling Leaderboard, of the package bfcl-eval."""

from envs.suites.bfcl.env import Bfcl

__all__ = ["Bfcl"]
