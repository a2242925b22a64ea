"""Where failed episodes leave the path of the environment's expert: the first turn with another call or answer.

    python -m benchmarks.gpu.mistakes code_exec outputs/learning/code_exec/run/episodes/after.jsonl

Prints JSON: for each kind of task, how many episodes failed at which turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Turn, read_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import Message
from forge_env.evaluation.evaluate import is_success
from forge_env.registry.registry import env_class


def mistakes(env: str, episodes: Iterable[Episode]) -> dict[str, dict[str, int]]:
    """Count failed episodes by kind of task, and by the first turn that the expert of `env` does otherwise.

    A call is named by its tool and the arguments that differ, such as "turn 3, create_order: items". Episodes that
    follow the expert to their end, and fail all the same, count as "none". Episodes without a reward do not count.

    Raises:
        UserError: there is no such environment, or it has no expert.
    """
    counts: dict[str, Counter[str]] = {}
    expert: Any = getattr(env_class(env), "expert", None)
    if expert is None:
        raise UserError(f"the environment {env} has no expert to compare with: name one that has a staticmethod expert")
    for episode in episodes:
        if episode.reward is not None and not is_success(episode):
            first = _first_mistake(expert, episode)
            counts.setdefault(episode.task.kind, Counter())[first] += 1
    return {kind: dict(counter.most_common()) for kind, counter in sorted(counts.items())}


def _first_mistake(expert: Any, episode: Episode) -> str:
    messages: list[Message] = []
    for number, turn in enumerate(episode.work, 1):
        messages += turn.observation
        wanted = _calls(expert(messages))
        if difference := _difference(turn, wanted):
            return f"turn {number}, {difference}"
        messages.append(turn.message)
    return "none"


def _calls(message: Message) -> list[tuple[str, Any]]:
    """The calls of a message, or its text as the only one."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return calls or [("answer", message["content"].strip())]


def _difference(turn: Turn, wanted: list[tuple[str, Any]]) -> str:
    """The expert's first call that a turn does not make, with the arguments that differ; empty if there is none."""
    made: list[tuple[str, Any]] = [(call.name, call.arguments) for call in turn.tool_calls]
    made = made or [("answer", turn.message["content"].strip())]
    for number, (name, arguments) in enumerate(wanted):
        found, given = made[number] if number < len(made) else ("", None)
        if (found, given) == (name, arguments):
            continue
        if found != name or not (isinstance(given, dict) and isinstance(arguments, dict)):
            return name
        differ = [key for key in {**arguments, **given} if arguments.get(key) != given.get(key)]
        return f"{name}: {', '.join(differ)}"
    return "" if len(made) == len(wanted) else "a further call"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="name of the environment")
    parser.add_argument("episodes", type=Path, help="file of episodes, such as RUN/episodes/after.jsonl")
    given = parser.parse_args()
    try:
        print(json.dumps(mistakes(given.env, read_jsonl(given.episodes)), indent=2))
    except (UserError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
