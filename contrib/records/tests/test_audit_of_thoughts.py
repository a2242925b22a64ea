"""`forge-env audit` of thoughts with a budget: what was inserted into a turn is known from what was sampled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.rendering import Renderer
from contrib.records.audit import audit, open_decoder
from tests.agents.test_thought_budget import CALL, TASK, Writer, play, renderer  # noqa: F401 (a fixture)


@pytest.mark.parametrize(
    "change",
    [
        lambda turn: turn["token_ids"].__setitem__(11, 5),  # an inserted token
        lambda turn: turn["token_ids"].__setitem__(3, 5),  # of the thought
        lambda turn: turn.update(versions=[[0, len(turn["token_ids"])]]),  # inserted tokens that would be trained on
        lambda turn: turn.update(context_digest=turn["context_digest"].split()[0]),
        lambda turn: turn.update(context_digest=" ".join(turn["context_digest"].split()[::-1])),
    ],
)
async def test_every_change_of_what_was_inserted_is_found(
    tiny_model: Path,
    renderer: Renderer,  # noqa: F811
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
) -> None:
    policy = Writer(renderer, "<think>\n" + "hm " * 40, f"{TASK.target}<|im_end|>")
    data = json.loads((await play(tiny_model, policy, max_turn_tokens=80, max_thinking_tokens=10)).to_json())
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(data) + "\n")
    assert audit(path, open_decoder(tiny_model, "on")).problems == []
    change(data["turns"][0])
    path.write_text(json.dumps(data) + "\n")
    assert audit(path, open_decoder(tiny_model, "on")).problems


async def test_a_thought_that_was_cut_off_is_decoded_as_it_was_read(
    tiny_model: Path,
    renderer: Renderer,  # noqa: F811
    tmp_path: Path,
) -> None:
    policy = Writer(renderer, f"<think>\nI could {CALL[:-10]} but")
    episode = await play(tiny_model, policy, max_turn_tokens=len(renderer.encode(f"<think>\nI could {CALL[:-10]} b")))
    assert episode.turns[0].tool_calls == () and episode.ended_by == "max_turn_tokens"
    (tmp_path / "e.jsonl").write_text(episode.to_json() + "\n")
    assert audit(tmp_path / "e.jsonl", open_decoder(tiny_model, "on")).problems == []
