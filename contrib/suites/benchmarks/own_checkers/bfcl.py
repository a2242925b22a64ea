"""BFCL's evaluation of recorded results, with its handler of OpenAI models with tool calls.

A line has "category" and "turns": user turn -> messages, each the list of its calls [[name, JSON text], ...] or a text.
It needs the whole package, whose table of models imports the clients of all providers.
"""

import contextlib
import copy
import functools
import io
import json
import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

os.environ.setdefault("OPENAI_API_KEY", "unused")

from bfcl_eval.constants.enums import Language, ReturnFormat
from bfcl_eval.eval_checker import eval_runner
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry

MODEL = "gpt-4o-2024-11-20-FC"
LANGUAGES = {
    "simple_java": (Language.JAVA, ReturnFormat.JAVA),
    "simple_javascript": (Language.JAVASCRIPT, ReturnFormat.JAVASCRIPT),
}


@functools.cache
def entries(category):
    shown = load_dataset_entry(category, include_prereq=False, include_language_specific_hint=False)
    answers = [None] * len(shown) if "relevance" in category else load_ground_truth_entry(category)
    return {
        entry["id"]: (entry, answer and answer["ground_truth"]) for entry, answer in zip(shown, answers, strict=True)
    }


def result_of(message):
    """Return a message as the handler records it."""
    return message if isinstance(message, str) else [{name: arguments} for name, arguments in message]


def verdict(handler, row):
    category = row["category"]
    entry, answer = copy.deepcopy(entries(category)[row["id"]])
    results = [[result_of(message) for message in turn] for turn in row["turns"]]
    if category.startswith("multi_turn"):
        # back ends are kept by the model's name, so each kind of agent has one of its own
        model = f"{MODEL}-{row['key'].partition(' ')[0]}"
        evaluate = eval_runner._evaluate_single_multi_turn_entry
        return evaluate(handler, row["id"], results, answer, entry, model, category)
    if "relevance" in category:
        evaluate = eval_runner._evaluate_single_relevance_entry
        return evaluate(handler, row["id"], results[0][0], entry, MODEL, category)
    language = LANGUAGES.get(category, (Language.PYTHON, ReturnFormat.PYTHON))
    evaluate = eval_runner._evaluate_single_ast_entry
    return evaluate(handler, row["id"], results[0][0], answer, entry, MODEL, category, *language)


def main(answers, verdicts):
    handler = OpenAICompletionsHandler("gpt-4o-2024-11-20", temperature=0, registry_name=MODEL, is_fc_model=True)
    judged = {}
    with open(answers) as lines, contextlib.redirect_stdout(io.StringIO()):
        for row in map(json.loads, lines):
            judged[row["key"]] = bool(verdict(handler, row)["valid"])
    with open(verdicts, "w") as file:
        json.dump(judged, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
