"""Episodes as TrainingTraces of OpenEnv, version 1: each call of the model with its whole prompt and its loss mask.

The record is strict, and has no place for rewards, weight versions and rows: they are under `metadata.forge_env` of the
turns, and the episode's under `episode` of the first one. A row's first turn has `metadata.parent_id` and
`metadata.harness_session_id`, as the nodes of OpenEnv's graph of calls. The messages have the form of chat completions.
Source: `openenv.core.harness.training` and `openenv.core.harness.capture.validate` of openenv 0.10.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from contrib.records.exports.conversation import OURS, conversations, outcome_of, token_facts
from contrib.records.exports.select import Selected
from forge_env.core.episode import Episode, Lineage, Turn

VERSION = 1
NO_TOKENS = "without the engine's token ids and logprobs, as experts and endpoints play"
REFUSED = "with an empty prompt, a negative token id or a logprob that is no number, which OpenEnv refuses"


def training_trace(selected: Selected, *, model: str | None, tools: Sequence[Any]) -> dict[str, Any] | str:
    """Return an episode as a TrainingTrace, or why it is left out. It grows with the square of the number of turns."""
    episode = selected.episode
    if not episode.is_trainable:
        return NO_TOKENS
    requests = [
        ([before.message for before in part[:place]], each)
        for part in conversations(episode)
        for place, each in enumerate(part)
        if each.turn is not None
    ]
    node_ids = [f"{episode.id or 'episode'}#{number}" for number in range(len(episode.turns))]
    lineage = {row.turn: row for row in episode.lineage}
    rows, row, end = iter(episode.rows), episode.rows[0], 0
    """The row of a turn, and the number of its tokens before it."""
    turns = []
    for number, (turn, (messages, answer)) in enumerate(zip(episode.turns, requests, strict=True)):
        row, end = (next(rows), 0) if turn.starts_row else (row, end)
        start = end + len(turn.prompt_ids)
        end = start + len(turn.token_ids)
        facts = _facts_of(turn)
        if not number:
            facts["episode"] = {**outcome_of(episode), "tail": list(episode.tail), "info": dict(episode.info)}
            facts["episode"] |= {"phase": selected.phase, "step": selected.step}
        turns.append(
            {
                "node_id": node_ids[number],
                "prompt_token_ids": row.token_ids[:start].tolist(),
                "completion_token_ids": turn.token_ids.tolist(),
                "per_token_logps": [min(logprob, 0.0) for logprob in turn.logprobs.tolist()],
                "loss_mask": [0] * start + row.loss_mask[start:end].astype(int).tolist(),
                "request": {"messages": messages, **({"tools": list(tools)} if tools else {})},
                "response": {
                    "choices": [{"message": answer.message, "finish_reason": turn.finish_reason}],
                    **({"model": model} if model else {}),
                },
                "metadata": {**_graph(lineage.get(number), node_ids), OURS: facts},
            }
        )
    return {"schema_version": VERSION, "turns": turns} if _is_taken(episode) else REFUSED


def _graph(row: Lineage | None, node_ids: Sequence[str]) -> dict[str, Any]:
    """What a node of OpenEnv's graph of calls says of a row's beginning, under the same names."""
    if row is None:
        return {}
    parent = {} if row.parent is None else {"parent_id": node_ids[row.parent]}
    return {**parent, **({"harness_session_id": row.agent} if row.agent else {})}


def _facts_of(turn: Turn) -> dict[str, Any]:
    facts: dict[str, Any] = {
        **token_facts(turn),
        "shown": len(turn.observation),  # the last messages of the request, which are new
        "reward": turn.reward,
        "policy_seconds": turn.policy_seconds,
        "env_seconds": turn.env_seconds,
        "tool_uses": [asdict(use) for use in turn.tool_uses],
    }
    facts |= {name: value for name in ("auxiliary", "is_summary") if (value := getattr(turn, name))}
    if turn.usage:
        facts["usage"] = dict(turn.usage)
    if (turn.logprobs > 0).any():  # a rounding of the engine, which OpenEnv refuses
        facts["logprobs"] = turn.logprobs.tolist()
    return facts


def _is_taken(episode: Episode) -> bool:
    return all(
        (len(turn.prompt_ids) or not turn.starts_row)
        and not ((turn.prompt_ids < 0).any() or (turn.token_ids < 0).any())
        and np.isfinite(turn.logprobs).all()
        for turn in episode.turns
    )
