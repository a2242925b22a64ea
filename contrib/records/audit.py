"""Checks the episodes of a run on disk: their invariants, their token digests, and the text of their tokens.

Reading an Episode checks its invariants and the digest of each prompt that an engine reported. Further checks: numbers
that no engine returns, rewards that do not add up, duplicate ids, calls without an id, turns that have lost what their
engine reported, and, if the model is available, whether a turn's tokens decode to its message.

The record says what a turn is. The message of a sampled turn was read from its tokens, so it is exactly what they
decode to. The message of a demonstration (kind "tokens") comes from an expert, and its tokens were written from it: its
calls may have no ids, and arguments that are objects. What was called is in the turn's `tool_calls`. Another program
gives ids and spaces of its own to the calls of a sampled turn, so an imported one is compared like a demonstration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contrib.records.run_settings import all_files, episode_line, run_settings
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.types import NOT_SAMPLED, Message, Outcome
from forge_env.records.run_files import FAULTS, IMPORTED, steps_of
from forge_env.records.run_weights import run_of

Decoder = Callable[[Turn], Message]
"""Returns the message that a turn's tokens decode to."""
OF_ENGINES = frozenset({"before", "train", "evaluation", "after", "tool_off"})
"""Phases of a training run in which engines sample each turn; an expert plays its demonstrations alone."""


@dataclass(slots=True, kw_only=True)
class Audit:
    episodes: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    decoded_turns: int = 0
    problems: list[str] = field(default_factory=list)
    """ "FILE:LINE: what is wrong", in order."""


def audit(run: Path, decode: Decoder | None = None) -> Audit:
    """Check every episode of a run.

    Args:
        run: a file of episodes, or the folder of an evaluation or a training run.
        decode: checks the tokens too; see `open_decoder`.
    """
    result = Audit()
    for phase, path in all_files(run).items():
        faults: set[str] = set()
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if path.name == FAULTS:
                    line, faults = episode_line(line), set()  # an episode may fault several times
                for problem in _check(line, faults, result, decode, is_of_engine=phase in OF_ENGINES):
                    result.problems.append(f"{path}:{number}: {problem}")
    return result


def open_decoder(model: str | Path, thinking: Any = "off") -> Decoder:
    """A function that decodes the tokens of a turn by the tokenizer of the model that sampled them."""
    from agents.renderer.rendering import Renderer

    renderer = Renderer(model, thinking=thinking)
    return lambda turn: renderer.read(turn.token_ids, turn.finish_reason).message


def model_of(run: Path) -> Path | None:
    """Return the folder of the model that sampled the tokens of a run; None if that is unknown."""
    try:
        agent = json.loads((run / "plan.json").read_text(encoding="utf-8")).get("agent", "")
    except (OSError, ValueError, AttributeError):
        run_of_model: Path | None = run
        folders = []
    else:
        kind, _, name = str(agent).partition(":")
        run_of_model = run_of(name) if kind in ("vllm", "checkpoint") else None
        folders = [Path(name).expanduser()] if kind == "vllm" else []
    if run_of_model is not None:  # all its weights have one tokenizer
        folders += [run_of_model / "model", run_of_model / "initial_model"]
        folders += [path / "model" for path in steps_of(run_of_model).values()]
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def thinking_of(run: Path) -> str:
    """Return whether the model of a run thought, as its settings say; "off" if that is unknown."""
    try:
        settings = run_settings(run)
    except UserError:
        return "off"
    return settings.thinking if settings else "off"


def _check(line: str, faults: set[str], result: Audit, decode: Decoder | None, *, is_of_engine: bool) -> Iterator[str]:
    try:
        episode = Episode.from_json(line)
    except ForgeError as error:
        yield str(error)
        return
    result.episodes += 1
    result.turns += len(episode.turns)
    result.sampled_tokens += episode.num_sampled
    if episode.id in faults:
        yield f"the episode {episode.id!r} is there twice"
    faults.add(episode.id)
    total, reward = sum(turn.reward for turn in episode.turns), episode.reward or 0.0
    is_sum = math.isclose(total, reward, rel_tol=1e-9, abs_tol=1e-9)
    if episode.outcome is Outcome.SCORED and episode.turns and not is_sum:  # without turns there is nothing to add up
        yield f"its turns' rewards add up to {total:g}, and its reward is {episode.reward}"
    is_imported = IMPORTED in episode.info
    for number, turn in enumerate(episode.turns):
        problems = list(_check_turn(turn, is_imported=is_imported))
        if is_of_engine and turn.kind != "sampled":
            problems.append(f"its kind is {turn.kind!r}: the ids and logprobs of the engine that sampled it are lost")
        yield from (f"turn {number}: {problem}" for problem in problems)
        if decode is not None and turn.kind != "text" and not problems:  # only valid tokens can be decoded
            result.decoded_turns += 1
            message = decode(turn)
            if not _is_message(message, turn, is_exact=turn.kind == "sampled" and not is_imported):
                yield f"turn {number}: its tokens decode to {message!r:.200}, and its message is {turn.message!r:.200}"


def _check_turn(turn: Turn, *, is_imported: bool) -> Iterator[str]:
    if (turn.prompt_ids < 0).any() or (turn.token_ids < 0).any():
        yield "a token id is no whole number from 0 on"
    if not all(call.id for call in turn.tool_calls):
        yield "a call has no id, which its result would name"
    if turn.kind != "sampled":
        return
    if any(not item.get("id") for item in turn.message.get("tool_calls", ())):
        yield "a call in its message has no id"
    if not turn.context_digest:
        yield "there is no digest of what the engine saw"
    if not (np.isfinite(turn.logprobs) & (turn.logprobs <= 1e-4)).all():
        yield "a logprob is no finite number up to 0"
    versions = [version for version, _ in turn.versions]
    sampled = [version for version in versions if version != NOT_SAMPLED]
    begins = versions[0] >= 0 or is_imported  # another program may mask whole turns
    if not begins or sampled != sorted(sampled) or min(sampled, default=0) < 0:
        yield f"its weight versions are {versions}: they never fall, and start at 0"


def _is_message(message: Message, turn: Turn, *, is_exact: bool) -> bool:
    """Whether a turn's message is what its tokens decode to; with the same calls in any form, unless exact."""
    if is_exact:
        return message == turn.message
    texts = [{key: value for key, value in each.items() if key != "tool_calls"} for each in (message, turn.message)]
    calls = [_call_of(item["function"]) for item in message.get("tool_calls", ())]
    return texts[0] == texts[1] and calls == [
        (call.name, call.raw if call.arguments is None else call.arguments) for call in turn.tool_calls
    ]


def _call_of(function: Mapping[str, Any]) -> tuple[str, Any]:
    """The name and the arguments of a call in a decoded message; text that is not JSON stays text."""
    try:
        return function["name"], json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return function["name"], function["arguments"]
