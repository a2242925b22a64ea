"""A question to a database."""

import judge

judge.reward(judge.read("/app/names.txt").split() == ["Ada", "Cleo", "Eve"])
