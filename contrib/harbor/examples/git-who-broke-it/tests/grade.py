"""The commit that changed a line."""

import judge

judge.reward(judge.read("/app/answer.txt").strip() == "settings: room for the spring sale")
