"""math: word problems and data sets, a calculator, and answers graded exactly or symbolically."""

from envs.math.env import Math, calculate
from envs.math.rewards import MathReward, ThinkingReward

__all__ = ["Math", "MathReward", "ThinkingReward", "calculate"]
