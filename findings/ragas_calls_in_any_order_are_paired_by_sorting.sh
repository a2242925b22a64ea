#!/bin/sh
# Ragas' ToolCallAccuracy with strict_order=False, on calls of one tool of which one is wrong.
# Packages: ragas 0.4.3 with the packages below. Guess: "tool calls can be in any order (parallel evaluation)" finds for each wanted
# call the one that was made, so two right calls of three are 0.67, as they are with strict_order=True where they stand in order.
# Seen: both sides are sorted by name and arguments and compared place by place, so a wrong value that sorts elsewhere shifts all
# calls between. Bern, Oslo, Rome are wanted: Zurich for Bern leaves two right calls of three, which are 0.67 in order and 0 in
# any order; Aachen for Rome is 0 too, Zurich for Oslo 0.33. The laxer setting pays less than the strict one, by the alphabet.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check ragas==0.4.3 langchain-community==0.3.31 \
        langchain-core==1.8.3 langchain-openai==1.1.9 instructor==1.3.2 datasets==5.2.0
    PYTHON="$folder/venv/bin/python"
fi
RAGAS_DO_NOT_TRACK=true "$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version

from ragas.messages import AIMessage, HumanMessage, ToolCall
from ragas.metrics.collections import ToolCallAccuracy

assert version("ragas") == "0.4.3"


def calls(*cities):
    return [ToolCall(name="weather", args={"city": city}) for city in cities]


def score(made, strict):
    messages = [HumanMessage(content="Weather?"), AIMessage(content="", tool_calls=made)]
    result = asyncio.run(ToolCallAccuracy(strict_order=strict).ascore(messages, calls("Bern", "Oslo", "Rome")))
    return round(result.value, 2)


for made, strict, lax in (
    (calls("Bern", "Oslo", "Rome"), 1.0, 1.0),
    (calls("Rome", "Bern", "Oslo"), 0.0, 1.0),
    (calls("Bern", "Oslo", "Paris"), 0.67, 0.67),
    (calls("Bern", "Paris", "Rome"), 0.67, 0.67),
    (calls("Zurich", "Oslo", "Rome"), 0.67, 0.0),
    (calls("Bern", "Zurich", "Rome"), 0.67, 0.33),
    (calls("Bern", "Oslo", "Aachen"), 0.67, 0.0),
):
    seen = score(made, True), score(made, False)
    print(f"Bern, Oslo, Rome wanted; made {[call.args['city'] for call in made]}: in order {seen[0]}, in any order {seen[1]}")
    assert seen == (strict, lax)
EOP
