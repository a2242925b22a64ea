#!/bin/sh
# The filters of lm-eval's own tasks gsm8k, gsm8k_cot_self_consistency and mmlu_pro on right answers as chat models write them.
# Package: lm-eval 0.4.13 (its task files, filters and metric alone). Guess: "flexible-extract" finds the last number of a reply,
# a vote is among answers, and the letter of "the answer is" is found with or without bold type.
# Seen: 1. gsm8k takes the last two or more of $ 0-9 . and , for a number. "$$\boxed{18}$$", "$\boxed{18}$." and "18. Good..."
# earn 0: the number is "$$", "$." or "...". "\boxed{18}" alone, or a full stop, is fine. 2. A reply that is not read votes for
# "[invalid]": of eight samples with three right and five that end in another form, maj@8 is wrong; the same samples with the five
# wrong in five ways are right. 3. mmlu_pro reads "the answer is **(C)**" and "$\boxed{C}$" as nothing, and "the answer is Because
# of this, (C)" as B.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check lm-eval==0.4.13
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import distribution, version

import yaml
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters import build_filter_ensemble
from lm_eval.api.instance import Instance

assert version("lm-eval") == "0.4.13", version("lm-eval")
yaml.SafeLoader.add_constructor("!function", lambda loader, node: None)


def task(path):
    text = distribution("lm-eval").locate_file(f"lm_eval/tasks/{path}").read_text()
    return yaml.safe_load(text)


def filtered(path, name, replies):
    """What the task's filter makes of the replies to one question."""
    rule = next(each for each in task(path)["filter_list"] if each["name"] == name)
    steps = [(step["function"], {key: step[key] for key in step if key != "function"}) for step in rule["filter"]]
    instance = Instance(request_type="generate_until", doc={}, arguments=("", {}), idx=0, resps=list(replies))
    build_filter_ensemble(name, steps).apply([instance])
    return instance.filtered_resps[name]


METRIC = task("gsm8k/gsm8k.yaml")["metric_list"][0]
OPTIONS = {key: METRIC[key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}
for reply, seen in (
    ("So she makes \\boxed{18}", 1),
    ("She makes 18.", 1),
    ("$$\\boxed{18}$$", 0),
    ("She makes $\\boxed{18}$.", 0),
    ("The answer is 18. Good...", 0),
):
    found = filtered("gsm8k/gsm8k.yaml", "flexible-extract", [reply])
    paid = exact_match_hf_evaluate([found], ["9 * 2 = 18\n#### 18"], **OPTIONS)["exact_match"]
    print(f"{reply!r}: {found!r}, {paid:g}")
    assert paid == seen
right = ["The answer is 18."] * 3
for others, seen in ((["So it is \\boxed{18}."] * 5, "[invalid]"), ([f"The answer is {n}." for n in range(5)], "18")):
    vote = filtered("gsm8k/gsm8k-cot-self-consistency.yaml", "maj@8", right + others)
    print(f"three samples say 18, the others {others}: {vote}")
    assert vote == seen
for reply, seen in (
    ("the answer is (C)", "C"),
    ("the answer is **(C)**", "[invalid]"),
    ("the answer is $\\boxed{C}$", "[invalid]"),
    ("the answer is Because of this, (C)", "B"),
):
    letter = filtered("mmlu_pro/_default_template_yaml", "custom-extract", [reply])
    print(f"{reply!r}: {letter}")
    assert letter == seen
EOP
