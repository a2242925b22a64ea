"""A question to a database."""

import sys

sys.path.insert(0, "/tests")
import judge

judge.reward(judge.read("/app/names.txt").split() == ["Ada", "Cleo", "Eve"])
