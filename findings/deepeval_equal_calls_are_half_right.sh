#!/bin/sh
# DeepEval's ToolCorrectnessMetric on calls, with their arguments compared and without (its default).
# Package: deepeval 4.3.1. Guess: the expected calls themselves are 1.0, and a call with another value does not pass.
# Seen: 1. Two equal expected calls, both made, are 0.5, as if one was missing: a call that equals one already taken is passed
# over. In order (`should_consider_ordering`) the same calls are 1.0. 2. Calls are given to expected ones first come, first
# served: for the same calls the score is 0.75 or 0.25, after the order in which they are expected. 3. With arguments
# compared, a payment to somebody else passes: half of its values are right, and the metric's own threshold is 0.5. Calls that
# nobody expects cost nothing. 4. None for the arguments of one side and {} for those of the other, two ways to write a call
# without any, raises an AttributeError.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check deepeval==4.3.1
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder"
DEEPEVAL_TELEMETRY_OPT_OUT=1 OPENAI_API_KEY=none "$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from deepeval.metrics import ToolCorrectnessMetric
from deepeval.test_case import LLMTestCase, ToolCall, ToolCallParams

assert version("deepeval") == "4.3.1"


def measure(made, wanted, **options):
    sides = {"tools_called": made, "expected_tools": wanted}
    sides = {side: [ToolCall(name=name, input_parameters=values) for name, values in calls] for side, calls in sides.items()}
    metric = ToolCorrectnessMetric(async_mode=False, **options)
    score = metric.measure(LLMTestCase(input="Do it.", actual_output="Done.", **sides), _show_indicator=False)
    return score, metric.success


SEARCH, OTHER = ("search", {"q": "a"}), ("search", {"q": "b"})
COMPARED = {"evaluation_params": [ToolCallParams.INPUT_PARAMETERS]}
IN_ORDER = {"should_consider_ordering": True, **COMPARED}
wanted_pages = [("read", {"file": "a", "page": 2}), ("read", {"file": "a", "page": 1})]
made_pages = [("read", {"file": "a", "page": 1}), ("read", {"file": "b", "page": 2})]
for what, made, wanted, options, expected in (
    ("another value, by default", [OTHER], [SEARCH], {}, (1, True)),
    ("two calls", [SEARCH, OTHER], [SEARCH, OTHER], COMPARED, (1, True)),
    ("two equal calls", [SEARCH, SEARCH], [SEARCH, SEARCH], COMPARED, (0.5, True)),
    ("two equal calls, by default", [SEARCH, SEARCH], [SEARCH, SEARCH], {}, (0.5, True)),
    ("two equal calls, in order", [SEARCH, SEARCH], [SEARCH, SEARCH], IN_ORDER, (1, True)),
    ("a page of each of two files", made_pages, wanted_pages, COMPARED, (0.25, False)),
    ("the same, expected the other way round", made_pages, wanted_pages[::-1], COMPARED, (0.75, True)),
    ("a call that nobody expects", [SEARCH, ("delete", {})], [SEARCH], COMPARED, (1, True)),
    ("to somebody else", [("pay", {"to": "eve", "sum": 9})], [("pay", {"to": "bob", "sum": 9})], COMPARED, (0.5, True)),
):
    seen = measure(made, wanted, **options)
    print(f"{what}: score {seen[0]}, passed {seen[1]}")
    assert seen == expected
try:
    measure([("list", {})], [("list", None)], **COMPARED)
except AttributeError as error:
    print(f"{{}} for None: {error}")
else:
    raise AssertionError("it does not raise any more")
EOP
