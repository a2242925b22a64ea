#!/bin/sh
# AReaL's reward for Geometry3K on targets as that data set has them (roots and fractions in LaTeX).
# Packages: areal 1.0.4, math-verify 0.9.0, latex2sympy2_extended 1.11.0; only the two files of its reward are needed.
# Guess: the target in a box, which its prompt asks for, earns 1, and another root, another fraction or a part of it earns 0.
# Seen: of target and answer alike only the last number is compared, or what stands in [brackets]: 5 of 2\sqrt{5}, 4 of
# \frac{3}{4}. So \boxed{3\sqrt{5}} and \boxed{5} are paid for 2\sqrt{5}, 7/4 for 3/4, and after a box the last number of the text
# behind it counts: "\boxed{9}, as of angle 1" is not 9, and 0.75 is not 3/4.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0 \
        antlr4-python3-runtime==4.13.2
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps areal==1.0.4
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import importlib.util
import logging
import sys
from importlib.metadata import distribution, version
from types import ModuleType

assert version("areal") == "1.0.4" and version("math-verify") == "0.9.0"
logging.disable(logging.CRITICAL)


def module(name, path):
    """One file of the package, without the rest of the package, which needs much more."""
    spec = importlib.util.spec_from_file_location(name, distribution("areal").locate_file(path))
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


for name in ("areal", "areal.utils"):
    sys.modules[name] = ModuleType(name)
sys.modules["areal.utils"].logging = logging  # its own logging only adds colours
module("areal.reward", "areal/reward/__init__.py")
reward = module("areal.reward.geometry3k", "areal/reward/geometry3k.py").geometry3k_reward_fn
for target, answer, seen in (
    (r"2\sqrt{5}", r"\boxed{2\sqrt{5}}", 1.0),
    (r"2\sqrt{5}", r"\boxed{3\sqrt{5}}", 1.0),
    (r"2\sqrt{5}", r"\boxed{5}", 1.0),
    (r"\frac{3}{4}", r"\boxed{\frac{7}{4}}", 1.0),
    (r"\frac{3}{4}", r"\boxed{4}", 1.0),
    (r"\frac{3}{4}", r"\boxed{0.75}", 0.0),
    ("9", r"\boxed{9}, as of angle 1", 0.0),
):
    paid = reward("", answer, [], [], target)
    print(f"target {target}, answer {answer!r}: {paid}")
    assert paid == seen
EOP
