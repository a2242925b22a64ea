#!/bin/sh
# Exact match of skyrl-gym's SearchEnv (Search-R1's rule) on answers that are a letter, a number or a name with signs.
# Package: skyrl-gym 0.4.0. Guess: an empty answer earns nothing, and a number is right with its sign and its point only.
# Seen: articles and ASCII punctuation are deleted from both sides. So the gold answer "A" is the empty text: an empty answer,
# "the" and "!" are paid in full. "5" is right for -5, "15" for 1.5, "34" for 3/4, "1030" for 10:30, "C" for C++. A
# typographic apostrophe is no ASCII punctuation: O'Brien is wrong in that spelling.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check skyrl-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

from skyrl_gym.envs.search.utils import compute_score

assert version("skyrl-gym") == "0.4.0"
for gold, answer, reward in (
    ("A", "A", 1),
    ("A", "B", 0),
    ("A", "", 1),
    ("A", "the", 1),
    ("A", "!", 1),
    ("Vitamin A", "vitamin", 1),
    ("-5", "5", 1),
    ("1.5", "15", 1),
    ("3/4", "34", 1),
    ("10:30", "1030", 1),
    ("C++", "C", 1),
    ("O'Brien", "O\u2019Brien", 0),
):
    score = compute_score(f"<answer>{answer}</answer>", {"target": [gold]})
    print(f"gold {gold!r}, answer {answer!r}: {score}")
    assert score == reward
EOP
