#!/bin/sh
# eval-protocol's math_reward on answers in GSM8K's form ("#### 1234"), as that data set writes its targets.
# Packages: eval-protocol 0.3.33, litellm 1.105.0. Guess: the number behind the mark is read, with or without commas.
# Seen: of a number without commas only the first three digits are read, on both sides: 1239 earns 1.0 for 1234, and 70000 for
# 700. A right answer with a comma, in a box or in a tag earns 0.0 against "#### 1234", since that is 123, and "#### 1234" earns
# 0.0 against the target 1234. Numbers of three digits, and numbers with commas, are read whole.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check eval-protocol==0.3.33 litellm==1.105.0
    PYTHON="$folder/venv/bin/python"
fi
LITELLM_LOCAL_MODEL_COST_MAP=True "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

from eval_protocol.models import Message
from eval_protocol.rewards.math import extract_numbers, math_reward

assert version("eval-protocol") == "0.3.33"
for text, numbers in (("#### 123", [123.0]), ("#### 1234", [123.0]), ("#### 1,234", [1234.0]), ("#### 70000", [700.0])):
    assert [number for _, number in extract_numbers(text)] == numbers
for answer, target, pay in (
    ("#### 1234", "#### 1234", 1.0),
    ("#### 1239", "#### 1234", 1.0),
    ("#### 70000", "#### 700", 1.0),
    ("#### 1,234", "#### 1234", 0.0),
    (r"\boxed{1234}", "#### 1234", 0.0),
    ("<answer>1234</answer>", "#### 1234", 0.0),
    ("#### 1234", "1234", 0.0),
    ("#### 124", "#### 123", 0.0),
):
    messages = [Message(role="user", content="How many?"), Message(role="assistant", content=f"It is as follows.\n{answer}")]
    seen = math_reward(messages=messages, ground_truth=target).score
    print(f"{answer} for {target}: {seen}")
    assert seen == pay
EOP
