#!/bin/sh
# Two graders of tool calls in NeMo Gym: xlam_fc, and single_step_tool_use_with_argument_comparison (here: single step).
# Package: nemo-gym 0.4.0 (made for Python 3.12; its graders run on 3.11 too) and what its graders import.
# Guess: the expected calls earn 1 in any order and in any spelling that JSON takes for the same; a wrong argument earns 0.
# Seen: 1. xlam_fc takes the first call that has at least the expected arguments. If one expected call is a part of another
# (page 1 by default, and page 2), the same calls in the other order earn 0. Arguments that nobody asked for cost nothing.
# 2. Single step pays 0 for 5 where 5.0 is expected, and for 5.0 where 5 is; true is paid for 1.
# 3. Its likeness of texts, called Jaccard, is the shared words divided by the words of both, so at most 0.5: with a threshold of 0.6
# the expected call itself earns 0. With 0.3, of its own configuration for search, "from Paris to Rome" earns 1 for
# "from Rome to Paris", and so does a line with one word of five changed. A single word must agree to the letter.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check openai==2.7.2 ray==2.55.1 wandb==0.31.0 hydra-core==1.3.8 \
        fastapi==0.165.0 uvicorn==0.54.0 aiohttp==3.14.5 itsdangerous==2.2.0 python-multipart==0.0.34 orjson==3.13.0 pandas==3.1.1 \
        yappi==1.7.6 gprof2dot==2025.4.14 pydot==4.0.1 psutil==7.2.2 rich==15.0.0 xmltodict==1.0.4 toml==0.10.2 \
        openapi-schema-validator==0.9.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python nemo-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder" # nemo_gym keeps its cache below the current folder
"$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall as Call
from resources_servers.single_step_tool_use_with_argument_comparison.common import verification_utils as single_step
from resources_servers.xlam_fc.app import XlamFcResourcesServer

assert version("nemo-gym") == "0.4.0", version("nemo-gym")
xlam = XlamFcResourcesServer.model_construct()
first, second = ({"name": "search", "arguments": arguments} for arguments in ({"q": "x"}, {"q": "x", "page": 2}))
more = {"name": "search", "arguments": {"q": "x", "nonsense": True}}
for calls, expected, pay in (
    ([first, second], [first, second], 1.0),
    ([second, first], [first, second], 0.0),
    ([second, first], [second, first], 1.0),
    ([more], [first], 1.0),
):
    seen = xlam._calculate_reward(calls, expected)[0]
    print("xlam_fc:", *(call["arguments"] for call in calls), "for", *(call["arguments"] for call in expected), "earns", seen)
    assert seen == pay


def earned(arguments, expected, threshold=0.3):
    grader = single_step.ToolCallComparator(config={"word_count_similarity_threshold": threshold})
    call = Call(type="function_call", call_id="1", name="f", arguments=json.dumps(arguments))
    return grader.compare_tool_call(
        single_step.ExpectedFunctionCall(type="function_call", name="f", arguments=json.dumps(expected)), call
    )[0]


trip = "a train from Rome to Paris"
for value, expected, threshold, pay in (
    *((5, 5.0, 0.3, 0.0), (5.0, 5, 0.3, 0.0), (True, 1, 0.3, 1.0)),
    *((trip, trip, 0.5, 1.0), (trip, trip, 0.6, 0.0)),
    ("a train from Paris to Rome", trip, 0.3, 1.0),
    ("rm -r build and dist", "ls -r build and dist", 0.3, 1.0),
    ("Rome", "rome", 0.3, 0.0),
):
    seen = earned({"x": value}, {"x": expected}, threshold)
    print(f"single step: {value!r} for {expected!r} with threshold {threshold} earns {seen}")
    assert seen == pay
EOP
