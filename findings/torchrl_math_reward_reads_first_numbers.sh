#!/bin/sh
# TorchRL's MATHRewardParser, its reward for Hendrycks' MATH, on the answers of that data set.
# Packages: torchrl 0.14.1, math-verify 0.9.0, torch 2.13.0. Guess: what stands in the data set's own box, given back as it is,
# earns 1.0.
# Seen: target and answer are parsed without the dollars or the box that math-verify looks for, so of most answers that are more
# than a number or a fraction nothing is read, or one number. x^2+1, \pi, [1,2] and \text{even} earn 0.1 (a wrong answer in the
# right format) against themselves. Only the 4 is read of (3, 4), so (7, 4) and 4 earn 1.0, as do 2\sqrt{5} for 2\sqrt{3}, 10^{-5}
# for 10^{-3} and y=2x-9 for y=2x+3. Without math-verify, which is optional, texts are compared, and these are told apart.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torchrl==0.14.1 tensordict==0.14.3 math-verify==0.9.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

from torchrl.envs.llm.reward.math import MATHRewardParser

assert version("torchrl") == "0.14.1" and version("math-verify") == "0.9.0"
parser = MATHRewardParser(input_mode="text")
for target, answer, pay in (
    *((r"\frac{1}{2}", r"\frac{1}{2}", 1.0), (r"\frac{1}{2}", r"\frac{3}{2}", 0.1), ("42", "42", 1.0)),
    *((own, own, 0.1) for own in ("x^2+1", r"\pi", "[1,2]", r"\text{even}")),
    *(("(3, 4)", "(7, 4)", 1.0), ("(3, 4)", "4", 1.0), (r"2\sqrt{3}", r"2\sqrt{5}", 1.0), (r"2\sqrt{3}", "2", 1.0)),
    *(("10^{-3}", "10^{-5}", 1.0), ("y=2x+3", "y=2x-9", 1.0)),
):
    _, said = parser.extract_tags(f"<think>so</think><answer>{answer}</answer>")
    seen = float(parser._single_correctness_reward(parser.extract_boxed(rf"\boxed{{{target}}}"), said, "so")["reward"])
    print(f"target {target}, answer {answer}: {seen:.1f}")
    assert abs(seen - pay) < 1e-6
EOP
