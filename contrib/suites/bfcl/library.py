"""The library file of BFCL: it runs in the interpreter that has bfcl-eval, see `envs.processes.worker`.

Tools, back ends and checkers are the suite's own. Calls of a model are executed and graded in a fork, from the start of
the conversation each time: nothing of an episode stays in this process. Standard library and bfcl-eval only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import keyword
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.processes.worker import Request, RunForked, Write

PACKAGES = ("bfcl_eval",)
CPU_SECONDS = 10.0
WALL_SECONDS = 60.0
MEMORY_BYTES = 4 << 30
MODEL = "forge/env"
"""Our name in the suite's table of models: one that gets tools in OpenAI's shape, with "_" for "." in their names."""
REFUSED = "forge_env_refused()"
"""Executed in the place of a call that would reach past the back ends. It fails, as unknown names do in the suite."""

Call = dict[str, Any]
"""{"name": ..., "arguments": {...}}"""


def open_library(run_forked: RunForked) -> Callable[[Request], Request]:
    """Import bfcl-eval, which makes folders for results at the place that it is told, else beside its code."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BFCL_PROJECT_ROOT"] = folder
        return Library(run_forked).answer


class Library:
    """The suite. Its entries are read when a category is first asked for."""

    def __init__(self, run_forked: RunForked) -> None:
        self._run_forked = run_forked
        _declare_model()
        package = "bfcl_eval"
        self._utils = importlib.import_module(f"{package}.utils")
        vars(self._utils)["FileLock"] = contextlib.nullcontext  # nobody writes its data, and this process may not
        self._model_utils = importlib.import_module(f"{package}.model_handler.utils")
        self._categories = importlib.import_module(f"{package}.constants.category_mapping")
        self._prompts = importlib.import_module(f"{package}.constants.default_prompts")
        self._enums = importlib.import_module(f"{package}.constants.enums")
        self._type_names = importlib.import_module(f"{package}.constants.type_mappings").GORILLA_TO_OPENAPI
        self._ast = importlib.import_module(f"{package}.eval_checker.ast_eval.ast_checker")
        self._multi_turn = importlib.import_module(f"{package}.eval_checker.multi_turn_eval.multi_turn_checker")
        self._back_ends = importlib.import_module(f"{package}.constants.executable_backend_config")
        for name, module in self._back_ends.CLASS_FILE_PATH_MAPPING.items():
            if not name.startswith(("Memory", "Web")):
                importlib.import_module(module)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "categories":
                return self._names()
            case "tasks":
                return {"tasks": [self._task(entry) for entry in self._entries(request["category"]).values()]}
            case "start":
                return self._start(self._entry(request))
            case "execute":
                return self._execute(self._entry(request), request)
            case _:
                return self._grade(request)

    def _names(self) -> dict[str, Any]:
        categories = self._categories
        return {
            "single_turn": categories.SINGLE_TURN_CATEGORY,
            "multi_turn": categories.MULTI_TURN_CATEGORY,
            "others": [c for c in categories.ALL_CATEGORIES if c.startswith(("memory", "web_search", "format"))],
            "groups": categories.TEST_COLLECTION_MAPPING,
        }

    @functools.cache  # noqa: B019  # there is one library
    def _entries(self, category: str) -> dict[str, Any]:
        entries = self._utils.load_dataset_entry(category, include_language_specific_hint=False)
        return {entry["id"]: entry for entry in entries}

    @functools.cache  # noqa: B019  # there is one library
    def _model_entries(self, category: str) -> dict[str, Any]:
        """Return the same as they are shown to a model, with remarks about the language in the descriptions."""
        return {entry["id"]: entry for entry in self._utils.load_dataset_entry(category)}

    @functools.cache  # noqa: B019  # there is one library
    def _answers(self, category: str) -> dict[str, Any]:
        """Return the possible answers by the id of the entry; some files have other ids, in the same order."""
        if "relevance" in category:
            return {}
        answers = self._utils.load_ground_truth_entry(category)
        return {id_: answer["ground_truth"] for id_, answer in zip(self._entries(category), answers, strict=True)}

    def _entry(self, request: dict[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = self._entries(request["category"])[request["id"]]
        return entry

    def _task(self, entry: dict[str, Any]) -> dict[str, Any]:
        category = self._utils.extract_test_category_from_id(entry["id"])
        later_functions = [doc for docs in entry.get("missed_function", {}).values() for doc in docs]
        functions = {doc["name"]: doc["parameters"] for doc in [*entry["function"], *later_functions]}
        return {
            "id": entry["id"],
            "category": category,
            "prompt": entry["question"][0],
            "answer": self._answers(category).get(entry["id"]),
            "parameters": {
                name: {
                    "types": {
                        key: [value["type"], (value.get("items") or {}).get("type", "")]
                        for key, value in parameters["properties"].items()
                    },
                    "required": parameters.get("required", []),
                }
                for name, parameters in functions.items()
            },
        }

    def _start(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the messages of each user turn, and the tools that are there from that turn on."""
        category = self._utils.extract_test_category_from_id(entry["id"])
        model_entry = self._model_entries(category)[entry["id"]]
        functions_by_turn = model_entry.get("missed_function", {})
        functions = list(model_entry["function"])
        turns = []
        for number, messages in enumerate(model_entry["question"]):
            if str(number) in functions_by_turn:
                functions += functions_by_turn[str(number)]
                messages = [{"role": "user", "content": self._prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
            has_changed = not number or str(number) in functions_by_turn
            turns.append({"messages": messages, "tools": self._tools(functions) if has_changed else None})
        return {"turns": turns}

    def _tools(self, functions: list[Any]) -> list[Any]:
        style = self._enums.ModelStyle.OPENAI_COMPLETIONS
        tools: list[Any] = self._model_utils.convert_to_tool(functions, self._type_names, style)
        return tools

    def _execute(self, entry: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        """Execute all calls from the start, and return the results of the last step, and its duration."""

        def work(write: Write, request: dict[str, Any]) -> None:
            results: list[str] = []
            run = self._multi_turn.execute_multi_turn_func_call
            arguments = (entry["initial_config"], entry["involved_classes"], MODEL, entry["id"])
            long_context = "long_context" in entry["id"]
            start = time.perf_counter()
            for step in (step for turn in request["turns"] for step in turn):
                start = time.perf_counter()
                results, _ = run(self._as_python(entry, step), *arguments, long_context=long_context)
            write({"results": results, "seconds": time.perf_counter() - start})

        return self._run_in_fork(work, request)

    def _grade(self, request: dict[str, Any]) -> dict[str, Any]:
        """Grade the calls of an episode: `calls` of a single turn, None if they cannot be read; or `turns`."""
        entry, category = self._entry(request), request["category"]

        def work(write: Write, request: dict[str, Any]) -> None:
            if "calls" in request:
                verdict = self._grade_calls(entry, category, request["calls"])
            else:
                turns = [[self._as_python(entry, step) for step in turn] for turn in request["turns"]]
                answer = self._answers(category)[entry["id"]]
                verdict = self._multi_turn.multi_turn_checker(turns, answer, entry, category, MODEL)
            write({"valid": bool(verdict["valid"]), "error_type": str(verdict.get("error_type", ""))})

        return self._run_in_fork(work, request)

    def _grade_calls(self, entry: dict[str, Any], category: str, calls: list[Call] | None) -> dict[str, Any]:
        if "relevance" in category:
            is_right = bool(calls) == ("irrelevance" not in category)
            return {"valid": is_right, "error_type": "" if is_right else f"{category}:calls"}
        if calls is None:
            return {"valid": False, "error_type": "ast_decoder:decoder_failed"}
        languages = self._enums.Language
        language = {"simple_java": languages.JAVA, "simple_javascript": languages.JAVASCRIPT}.get(category)
        function_calls = [{call["name"]: call["arguments"]} for call in calls]
        answer = self._answers(category)[entry["id"]]
        verdict: dict[str, Any] = self._ast.ast_checker(
            entry["function"], function_calls, answer, language or languages.PYTHON, category, MODEL
        )
        return verdict

    def _as_python(self, entry: dict[str, Any], step: list[Call]) -> list[str]:
        """Return calls as the suite evaluates them, which is by `eval`; only calls of back ends come that far."""
        methods = self._methods(tuple(entry["involved_classes"]))
        return [
            self._model_utils.convert_to_function_call({call["name"]: call["arguments"]})[0]
            if call["name"] in methods
            and all(name.isidentifier() and not keyword.iskeyword(name) for name in call["arguments"])
            else REFUSED
            for call in step
        ]

    @functools.cache  # noqa: B019  # there is one library
    def _methods(self, class_names: tuple[str, ...]) -> frozenset[str]:
        names: set[str] = set()
        for name in class_names:
            of_class = getattr(importlib.import_module(self._back_ends.CLASS_FILE_PATH_MAPPING[name]), name)
            names |= {method for method, _ in inspect.getmembers(of_class, inspect.isfunction)}
        return frozenset(name for name in names if not name.startswith("_"))

    def _run_in_fork(self, work: Callable[..., None], request: dict[str, Any]) -> dict[str, Any]:
        """Return what a fork writes for a request; "ended" if the model's part of it has ended the fork."""
        nothing: dict[str, Any] = {"calls": []} if "calls" in request else {"turns": [[] for _ in request["turns"]]}
        works = [functools.partial(work, request={**request, **changes}) for changes in ({}, nothing)]
        limits = {"cpu_seconds": CPU_SECONDS, "wall_seconds": WALL_SECONDS, "memory_bytes": MEMORY_BYTES}
        values, exit_code = self._run_forked(works[0], control=works[1], **limits)
        return values[0] if exit_code == 0 else {"ended": exit_code}


def _declare_model() -> None:
    """Put a table with our model alone in the place of the suite's, which imports the clients of all providers.

    The checkers read one thing in it: whether a model's functions have "_" for ".".
    """
    name = "bfcl_eval.constants.model_config"
    module = types.ModuleType(name)
    vars(module)["MODEL_CONFIG_MAPPING"] = {MODEL: types.SimpleNamespace(underscore_to_dot=True)}
    sys.modules[name] = module
