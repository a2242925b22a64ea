#!/bin/sh
# Several calls in one turn in aviary's GSM8K and HotPotQA environments.
# Packages: aviary-gsm8k 0.37.0, aviary-hotpotqa 0.37.0, fhaviary 0.37.0.
# Guess: the first answer ends the episode, a solved task is worth 1, and a call that is wrong in its form costs the
# same beside other calls as alone.
# Seen: every answer of the turn is graded, and the rewards are added up: the right answer three times is worth 3.0,
# and 17, 18 and 19 for 18 are worth 1.0. So a model learns to send its answer often, and to guess. In GSM8K a call of
# a tool that does not exist costs 1 and ends the episode; beside a valid call it costs nothing. The right answer "$18"
# costs 1, a wrong number nothing, and a failed calculation beside a right answer gives 0, though the answer is right.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==4.7.0 \
        fhaviary==0.37.0 aviary-gsm8k==0.37.0 aviary-hotpotqa==0.37.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version

from aviary.core import ToolCall, ToolRequestMessage
from aviary.envs.gsm8k.env import CalculatorEnv
from aviary.envs.hotpotqa.env import HotPotQAEnv

assert version("aviary-gsm8k") == version("aviary-hotpotqa") == version("fhaviary") == "0.37.0"


def answer(*texts):
    return [ToolCall.from_name("submit_answer", answer=text) for text in texts]


def count(expression):
    return [ToolCall.from_name("calculator", expr=expression)]


async def play(env, calls):
    await env.reset()
    _, reward, done, _ = await env.step(ToolRequestMessage(tool_calls=calls))
    return reward, done


unknown = [ToolCall.from_name("think", text="3 * 6")]
for title, calls, result in (
    ("the answer", answer("18"), (1.0, True)),
    ("the answer three times", answer("18", "18", "18"), (3.0, True)),
    ("three guesses", answer("17", "18", "19"), (1.0, True)),
    ("a wrong answer", answer("17"), (0.0, True)),
    ("$18", answer("$18"), (-1.0, True)),
    ("an unknown tool", unknown, (-1.0, True)),
    ("an unknown tool beside another", [*unknown, *count("3 * 6")], (0.0, False)),
    ("a failed calculation and the answer", [*count("3 x 6"), *answer("18")], (0.0, True)),
):
    seen = asyncio.run(play(CalculatorEnv("1", "How many?", 18.0), calls))
    print(f"GSM8K, {title}: reward {seen[0]}, done {seen[1]}")
    assert seen == result
for title, calls, result in (
    ("the answer", answer("Paris"), (1.0, True)),
    ("the answer three times", answer("Paris", "Paris", "Paris"), (3.0, True)),
    ("three guesses", answer("Rome", "Paris", "London"), (1.0, True)),
):
    seen = asyncio.run(play(HotPotQAEnv(None, "Which one is it?", "Paris"), calls))
    print(f"HotPotQA, {title}: reward {seen[0]}, done {seen[1]}")
    assert seen == result
EOP
