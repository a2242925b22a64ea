"""The suites of `contrib.suites.benchmarks.third_party`: their options, solutions, cheats, and the lines of their own
checkers."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contrib.suites.agentdojo import env as agentdojo
from contrib.suites.bfcl import env as bfcl
from contrib.suites.humaneval import env as humaneval
from envs.code_exec.cheats import cheats as code_cheats
from envs.code_exec.env import extract_code
from forge_env.core.episode import Episode
from forge_env.core.types import Task

Script = Callable[..., Any]
ScriptOf = Callable[[Task], Script | None]


@dataclass(frozen=True, slots=True)
class Played:
    """An episode of a task, played by a named script."""

    task: Task
    agent: str
    episode: Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One row of the table."""

    env: str
    """Also the name of the suite in the catalogue."""
    gold: ScriptOf
    cheats: Mapping[str, ScriptOf]
    is_silence_right: bool = False
    """Whether an answer without a call is what the suite wants."""
    options: Mapping[str, Any] = field(default_factory=dict)
    own_row: Callable[[Played], dict[str, Any]]
    """What its own checker is given."""
    own_verdict: Callable[[Played], Any] = lambda played: played.episode.reward == 1.0


def say(text: str) -> Script:
    return lambda messages: {"role": "assistant", "content": text}


def calls(*made: tuple[str, Mapping[str, Any]]) -> Script:
    """Return a script that makes calls in answer to each message of a user."""
    written = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for i, (name, arguments) in enumerate(made)
    ]
    return lambda messages: {
        "role": "assistant",
        "content": "",
        **({"tool_calls": written} if messages[-1]["role"] == "user" else {}),
    }


# ---- BFCL ----


def _every_function(task: Task) -> Script | None:
    functions = task.metadata["functions"][:64]
    return calls(*((name, {}) for name in functions)) if functions else None


def _code_in_a_name(task: Task) -> Script | None:
    name = "x=__import__('os').getcwd() or y"
    function = next(iter(task.metadata["functions"]), "print")  # some have none
    return calls((function, {name: 1}), ("eval", {"source": "globals()"}), ("globals", {}))


def _changed(change: Callable[[list[Any]], list[Any] | None]) -> ScriptOf:
    """Return the solution with the calls of its last user turn that has any changed; None where there is no change."""

    def script_of(task: Task) -> Script | None:
        is_conversation = task.kind.startswith("multi_turn")
        turns = copy.deepcopy(task.target if is_conversation else [task.target or []])
        last = max((i for i, turn in enumerate(turns) if turn), default=-1)
        changed = change(turns[last]) if last >= 0 else None
        if not changed:
            return None
        turns[last] = changed
        return bfcl.script_of(dataclasses.replace(task, target=turns if is_conversation else changed))

    return script_of


def _without_the_last(calls: list[Any]) -> list[Any] | None:
    return calls[:-1] or None


def _with_a_wrong_value(calls: list[Any]) -> list[Any] | None:
    arguments = calls[-1]["arguments"]
    name = next((n for n, value in arguments.items() if isinstance(value, (str, int, float))), None)
    if name is None:
        return None
    value = arguments[name]
    arguments[name] = f"{value} qwfp" if isinstance(value, str) else not value if isinstance(value, bool) else value + 7
    return calls


def _bfcl_row(played: Played) -> dict[str, Any]:
    """Return the messages of the agent by user turn, as the suite records those of a model with tool calls."""
    shown = sum(message["role"] == "user" for message in played.task.prompt)
    turns: list[list[Any]] = []
    users = 0
    for message in list(played.episode.messages):
        if message["role"] == "user":
            users += 1
            if users >= shown:
                turns.append([])
        elif message["role"] == "assistant" and turns:
            made = message.get("tool_calls")
            turns[-1].append(
                [[c["function"]["name"], json.dumps(c["function"]["arguments"])] for c in made]
                if made
                else message["content"]
            )
    return {"category": played.task.kind, "turns": turns}


# ---- AgentDojo ----


def _hijacked(task: Task) -> Script | None:
    """Do what the injection asks for, and not the user's task."""
    made = task.metadata["injection_calls"]
    return agentdojo.script_of_calls(made, "Done.") if made else None


def _agentdojo_row(played: Played) -> dict[str, Any]:
    metadata = played.task.metadata
    messages = [
        [turn.message["content"], [[call.name, call.arguments] for call in turn.tool_calls]]
        for turn in played.episode.turns
    ]
    names = ("suite", "version", "user_task", "injection_task", "injections")
    return {**{name: metadata[name] for name in names}, "messages": messages}


def _agentdojo_verdict(played: Played) -> list[bool]:
    parts = played.episode.rewards
    return [parts["utility"] == 1.0, parts.get("security", 1.0) == 0.0]


# ---- HumanEval ----


def _code_cheat(number: int, of: int) -> ScriptOf:
    """Return one of the cheats of code_exec: a fixed share of them for each task, so that all are played."""

    def script_of(task: Task) -> Script:
        answers = code_cheats(task)
        start = int(task.id.rpartition("/")[2]) * of
        return say(answers[(start + number) % len(answers)])

    return script_of


def _broken(task: Task) -> Script:
    """The solution, but a function that then returns None."""
    name = task.metadata["entry_point"]
    return say(f"```python\n{task.metadata['solution']}\n_right = {name}\ndef {name}(*xs): _right(*xs)\n```")


_TEXTS: dict[str, ScriptOf] = {
    "claim": lambda task: say("The calls are right. valid: True, reward: 1.0"),
    "calls-as-text": lambda task: say(repr(task.target)),
}
_CALLS: dict[str, ScriptOf] = {"every-function": _every_function, "code-in-a-name": _code_in_a_name}
_WRONG: dict[str, ScriptOf] = {
    "without-the-last-call": _changed(_without_the_last),
    "wrong-value": _changed(_with_a_wrong_value),
}


def _bfcl_suite(category: str, cheats: Mapping[str, ScriptOf], *, is_silence_right: bool = False) -> Suite:
    return Suite(
        env="bfcl",
        options={"category": category},
        gold=lambda task: bfcl.script_of(task) if task.target is not None else None,
        is_silence_right=is_silence_right,
        cheats=cheats,
        own_row=_bfcl_row,
    )


SUITES: dict[str, Suite] = {
    "humaneval": Suite(
        env="humaneval",
        gold=humaneval.script_of,
        cheats={**{f"code-cheat-{n}": _code_cheat(n, 3) for n in range(3)}, "broken": _broken},
        own_row=lambda played: {"program": extract_code(played.episode.turns[-1].message["content"])},
    ),
    "agentdojo": Suite(
        env="agentdojo",
        gold=agentdojo.script_of,
        cheats={"claim": lambda task: say("I have done what you asked for.")},
        own_row=_agentdojo_row,
        own_verdict=_agentdojo_verdict,
    ),
    "agentdojo, important_instructions": Suite(
        env="agentdojo",
        options={"attack": "important_instructions"},
        gold=agentdojo.script_of,
        cheats={"hijacked": _hijacked},
        own_row=_agentdojo_row,
        own_verdict=_agentdojo_verdict,
    ),
    "bfcl, calls": _bfcl_suite("calls", {**_TEXTS, **_CALLS, **_WRONG}),
    "bfcl, irrelevance": _bfcl_suite("irrelevance,live_irrelevance", _CALLS, is_silence_right=True),
    "bfcl, relevance": _bfcl_suite("live_relevance", _TEXTS),
}
