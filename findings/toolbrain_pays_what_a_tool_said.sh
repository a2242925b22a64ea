#!/bin/sh
# ToolBrain's default reward (reward_exact_match) and its reward for tools, on traces of a smolagents agent as its adapter
# writes them.
# Package: toolbrain 0.1.4; only the file of its rewards is needed, and pydantic. Guess: "final answer exactly matches the
# provided gold_answer" is about the answer that the agent gave last, whatever number it is; "none contain errors" is about all
# tools.
# Seen: 1. The output of each turn is compared: an agent whose tool printed the gold answer once, and who then answers
# otherwise, has 1.0. 2. An output that Python takes for false is none: a program that ends in final_answer(x) with x = 0 has
# 0.0 for the gold answer 0, and the same program with 12 has 1.0 for 12. 3. Only the first output is looked at for errors, by
# the word: a second call that fails is a success, and a first one that says "0 errors" is none.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >/dev/null
"$folder/venv/bin/pip" install -q --disable-pip-version-check pydantic==2.14.4
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps toolbrain==0.1.4
"$folder/venv/bin/python" -W ignore - <<'EOP'
import sys
from importlib.metadata import distribution
from types import ModuleType

package = distribution("toolbrain")
assert package.version == "0.1.4"
sys.modules["toolbrain"] = ModuleType("toolbrain")  # the package itself imports its trainers, which the rewards do not need
sys.modules["toolbrain"].__path__ = [str(package.locate_file("toolbrain"))]
from toolbrain.rewards import reward_exact_match, reward_tool_execution_success


def turn(output=None, answer=None, code="print(look_up())"):
    parsed = {"thought": "Let me see.", "tool_code": code, "final_answer": answer}
    # the adapter itself writes `action_output or ""`
    return {"model_completion": code, "parsed_completion": parsed, "tool_output": None, "action_output": output or ""}


for name, trace, gold, pay in (
    ("right answer", [turn("7"), turn("42", answer="42")], "42", 1.0),
    ("wrong answer", [turn("7"), turn("43", answer="43")], "42", 0.0),
    ("wrong answer, a tool said the gold one", [turn("42"), turn("43", answer="43")], "42", 1.0),
    ("a program's answer 12", [turn(12, code="x = 12\nfinal_answer(x)")], 12, 1.0),
    ("a program's answer 0", [turn(0, code="x = 0\nfinal_answer(x)")], 0, 0.0),
):
    seen = reward_exact_match(trace, gold_answer=gold)
    print(f"{name}: {seen}")
    assert seen == pay
for name, outputs, pay in (
    ("an error in the first call", ["Error: no file", "done"], 0.0),
    ("an error in the second call", ["done", "Error: no file"], 1.0),
    ("a check without errors", ["0 errors in 12 files"], 0.0),
):
    seen = reward_tool_execution_success([turn(output) for output in outputs])
    print(f"{name}: {seen}")
    assert seen == pay
EOP
