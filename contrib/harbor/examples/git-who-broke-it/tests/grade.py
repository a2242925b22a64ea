"""The commit that changed a line."""

import sys

sys.path.insert(0, "/tests")
import judge

judge.reward(judge.read("/app/answer.txt").strip() == "settings: room for the spring sale")
