#!/bin/sh
# aviary's HotPotQA environment with `evaluation_mode` exact, an option of its configuration, and with contains, its
# default.
# Packages: aviary-hotpotqa 0.37.0, fhaviary 0.37.0.
# Guess: exact pays the answer alone, contains pays an answer in a sentence too, and an answer that does not give the
# right one is paid by neither.
# Seen: 1. Both modes pay the same. The mode is handed over in the place of the question, so contains is used, whatever
# was configured; nothing warns. 2. contains looks for letters, not for words: "I do not know" has the answer "no" in
# it, and so have "Norway" and "unknown"; 13 has 3. Many of the data set's questions are answered by yes or no. 3.
# Articles are taken out of the right answer first. Nothing is left of the band "The The", so each answer is paid.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==4.7.0 \
        fhaviary==0.37.0 aviary-hotpotqa==0.37.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version

from aviary.core import EvalAnswerMode, ToolCall, ToolRequestMessage
from aviary.envs.hotpotqa.env import HotPotQAEnv, HotPotQAEnvConfig

assert version("aviary-hotpotqa") == version("fhaviary") == "0.37.0"


async def play(gold, answer, mode):
    config = HotPotQAEnvConfig(evaluation_mode=mode)
    env = HotPotQAEnv(None, "Which one is it?", gold, evaluation_mode=config.evaluation_mode)
    await env.reset()
    call = ToolCall.from_name("submit_answer", answer=answer)
    _, reward, done, _ = await env.step(ToolRequestMessage(tool_calls=[call]))
    assert done
    return reward


for gold, answer, pay in (
    ("Paris", "Paris", 1.0),
    ("Paris", "It is Paris, France", 1.0),
    ("Paris", "Rome", 0.0),
    ("no", "yes", 0.0),
    ("no", "I do not know", 1.0),
    ("no", "Norway", 1.0),
    ("no", "yes, if unknown", 1.0),
    ("3", "13", 1.0),
    ("The The", "The Smiths", 1.0),
):
    modes = (EvalAnswerMode.EXACT, EvalAnswerMode.CONTAINS)
    seen = {mode.value: asyncio.run(play(gold, answer, mode)) for mode in modes}
    print(f"{answer!r} for {gold!r}: {seen}")
    assert seen == {"exact": pay, "contains": pay}
EOP
