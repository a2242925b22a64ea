#!/bin/sh
# A reply without <answer>, given to GEM's QaEnv.
# Package: gem-llm 0.1.0 with the packages below. Guess: the reward is 0 and the episode ends.
# Seen: step raises UnboundLocalError: `is_correct` is set only if an answer was read. An untrained model gives such
# replies often, and each ends the collection.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check gem-llm==0.1.0 datasets==4.7.0 numpy==2.4.0 regex==2026.11.15
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>/dev/null <<'EOP'
from importlib.metadata import version

from datasets import Dataset
from gem.envs.qa_env import QaEnv

assert version("gem-llm") == "0.1.0"
env = QaEnv(dataset=Dataset.from_list([{"question": "The capital of France?", "answer": "Paris"}]), load_from_cache_file=False)
env.reset()
print("with the mark: reward", env.step("<answer>Paris</answer>")[1])
env.reset()
try:
    print("without: reward", env.step("It is Paris.")[1])
except UnboundLocalError as error:
    print(f"without: {type(error).__name__}: {error}")
else:
    raise AssertionError("the reply was graded")
EOP
