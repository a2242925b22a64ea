#!/bin/sh
# Oumi's reward for Countdown (make a number of the given ones with + - * /, each once), on answers in the tags its prompt asks
# for.
# Package: oumi 0.9; only the file of this reward is needed (its registry is replaced, which does nothing but keep names).
# Guess: the last pair of tags is graded wherever it stands, and an answer may use the given numbers and the four operations
# only.
# Seen: 1. Only the last line is read, and it must hold both tags: a line end behind </answer>, as many models write, or an
# answer on a line of its own, earns 0. 2. Numbers are runs of digits, so a point joins two: 2.5*4 is 10 of [2, 5, 4], and
# 0.5*20 is 10 of [0, 5, 20], both 1.0. `**` and `//` are paid too, since only letters are checked. A model that learns these is
# paid for problems without a solution.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --disable-pip-version-check --no-deps --target "$folder/packages" oumi==0.9
PYTHONPATH="$folder/packages" python3 -W ignore - <<'EOP'
import runpy
import sys
from importlib.metadata import distribution
from types import ModuleType, SimpleNamespace

package = distribution("oumi")
assert package.version == "0.9"
registry = ModuleType("oumi.core.registry")
registry.RegistryType, registry.register = SimpleNamespace(REWARD_FUNCTION=None), lambda *_: lambda function: function
sys.modules |= {"oumi": ModuleType("oumi"), "oumi.core": ModuleType("oumi.core"), "oumi.core.registry": registry}
reward = runpy.run_path(str(package.locate_file("oumi/datasets/grpo/rewards/countdown_rewards.py")))["countdown_reward"]


def paid(answer, numbers, target):
    return reward("countdown", f"<think>Let me see.</think>\n{answer}", {"target": target, "numbers": numbers}, {})


for answer, pay in (
    ("<answer>3 * 4</answer>", 1.0),
    ("So it is <answer>3 * 4</answer>.", 1.0),
    ("<answer>3 * 4</answer>\n", 0),
    ("<answer>\n3 * 4\n</answer>", 0),
    ("<answer>3 * 4</answer>\nThat is 12.", 0),
):
    seen = paid(answer, [3, 4], 12)
    print(f"{answer!r} for 12 of [3, 4]: {seen}")
    assert seen == pay
for answer, numbers, target, pay in (
    ("2 * 5 * 4", [2, 5, 4], 10, 0.0),
    ("2.5 * 4", [2, 5, 4], 10, 1.0),
    ("0.5 * 20", [0, 5, 20], 10, 1.0),
    ("2 ** 3 * 1", [1, 2, 3], 8, 1.0),
    ("7 // 2", [7, 2], 3, 1.0),
    ("3 * 4 = 12", [3, 4], 12, 0.0),
):
    seen = paid(f"<answer>{answer}</answer>", numbers, target)
    print(f"{answer} for {target} of {numbers}: {seen}")
    assert seen == pay
EOP
