"""The Berkeley Function Calling Leaderboard, of the package bfcl-eval."""

from contrib.suites.bfcl.env import Bfcl

__all__ = ["Bfcl"]
