#!/bin/sh
# Rewards of CAMEL's SingleStepEnv for a batch of four answers, with its MathVerifier and the extractor of boxes.
# Packages: camel-ai 0.2.90, mcp 1.26.0 (with mcp 2 it does not import), math-verify 0.9.0, torch 2.13.0. Guess: each answer of
# a batch has its own reward, 1.0 if it is right; one without a box has 0.0; of two boxes the last is the answer.
# Seen: 1. One answer without a box, or cut off inside of it, and all four have 0.0 (status FAILURE, empty result): the step
# asks the verifier to raise on any error, and gives every answer of the batch the failure. A wrong answer in a box does no such
# harm. So the more rows are stepped at once, the less is ever paid, until a model always writes its box. 2. The first box is
# the answer, so a correction is not read. 3. PythonListStrategy, for answers that are lists, sorts them: [3, 1, 2] is [1, 2,
# 3], so where the order is asked for, the right list cannot be extracted.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check camel-ai==0.2.90 mcp==1.26.0 \
        math-verify==0.9.0 datasets==4.7.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import asyncio
import logging
from importlib.metadata import version

from camel.datasets import StaticDataset
from camel.environments import Action, SingleStepEnv
from camel.extractors import BaseExtractor, BoxedStrategy, PythonListStrategy
from camel.verifiers import MathVerifier

assert version("camel-ai") == "0.2.90"
logging.disable(logging.CRITICAL)
ROWS = [{"question": f"What is {n} + {n}?", "final_answer": str(2 * n), "rationale": "Added."} for n in range(1, 5)]


async def extractor(*strategies):
    made = BaseExtractor(pipeline=[[strategy()] for strategy in strategies])
    await made.setup()
    return made


async def rewards(answers):
    environment = SingleStepEnv(StaticDataset(ROWS), MathVerifier(extractor=await extractor(BoxedStrategy)))
    await environment.setup()
    await environment.reset(batch_size=4)
    steps = await environment.step([Action(index=index, llm_response=answer) for index, answer in enumerate(answers)])
    await environment.close()
    return [reward for _, reward, _, _ in steps]


async def main():
    for third, expected in (
        (r"\boxed{6}", [1.0] * 4),
        (r"\boxed{5}", [1.0, 1.0, 0.0, 1.0]),
        (r"\boxed{5}, no: \boxed{6}", [1.0, 1.0, 0.0, 1.0]),
        ("I do not know.", [0.0] * 4),
        (r"\boxed{6", [0.0] * 4),
    ):
        seen = await rewards([r"\boxed{2}", r"\boxed{4}", third, r"\boxed{8}"])
        print(f"third answer {third}: rewards {seen}")
        assert seen == expected
    extracted = await (await extractor(BoxedStrategy, PythonListStrategy)).extract(r"\boxed{[3, 1, 2]}")
    print(f"[3, 1, 2] is extracted as {extracted}")
    assert extracted == "[1, 2, 3]"


asyncio.run(main())
EOP
