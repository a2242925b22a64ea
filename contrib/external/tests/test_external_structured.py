"""A real engine: grammars hold, no loss is over the tokens that they have masked, and stop texts end the sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from anthropic import AsyncAnthropic
from jsonschema import validate

from agents.generator.local import LocalAgent
from contrib.external.tests.external_playing import opened, playing
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import Episode, read_jsonl, write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.registry.agent_spec import AgentSettings, open_agent
from trainers.batching.batch import Sample
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanSettings, TitanTrainer

LIMITS = EpisodeLimits(max_turns=40, max_tokens=1024, max_turn_tokens=200)
SETTINGS = AgentSettings(env="external", max_tokens=1024, concurrency=4)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"pens": {"enum": [1, 2, 3]}, "ok": {"type": "boolean"}},
    "required": ["pens", "ok"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "pens", "schema": SCHEMA}}
ADD = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
FUNCTION: Any = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}
OTHER: Any = {"type": "function", "function": {"name": "sub", "description": "", "parameters": ADD}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"a": {"type": "wrong"}}}, "is no JSON Schema: 'wrong' is not valid"),
    ({"$ref": "#/nowhere"}, "Cannot find field nowhere"),
    ({"type": "string", "pattern": "(a"}, "'(a' is not a 'regex'"),
    ({"type": "integer", "multipleOf": 3}, "a feature that the engine's grammar cannot enforce"),
    ({"enum": []}, "enum array must not be empty"),
]


@pytest.mark.slow
@pytest.mark.timeout(400)  # one start of the engine
async def test_answers_have_their_form_and_are_left_out_of_the_loss(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tiny_model)
    async with open_agent(f"checkpoint:{tmp_path}", SETTINGS) as agent, opened(folder=tmp_path) as factory:
        assert isinstance(agent, LocalAgent)
        async with playing(factory, agent, tmp_path, limits=LIMITS) as program:
            await forms(program)
            mixed = await program.end()
        async with playing(factory, agent, tmp_path, seed=1, limits=LIMITS) as program:
            await refusals(program)
            await program.chat("How many pens?", max_tokens=5)
            refused = await program.end()
        async with playing(factory, agent, tmp_path, seed=2, limits=LIMITS) as program:
            await stops(program)
            stopped = await program.end()
    assert [episode.outcome for episode in (mixed, refused, stopped)] == [Outcome.SCORED] * 3
    assert any(turn.finish_reason == "stop" and len(turn.token_ids) < 40 for turn in stopped.turns)
    assert (len(refused.turns), refused.info["refused_requests"]) == (1, {"response_format": 2, "unsupported_form": 3})
    check_rows(mixed)
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, [mixed, refused, stopped])
    assert list(read_jsonl(file)) == [mixed, refused, stopped]
    result = audit(file, open_decoder(tiny_model))
    assert result.problems == []
    check_trainer(tiny_model, mixed)


async def forms(program: Any) -> None:
    """Ask for every form, and check the answers."""
    free = await program.chat("How many pens?", max_tokens=12, logprobs=True)
    [first, *_] = tokens = free.choices[0].logprobs.content
    assert 1 <= len(tokens) <= 12 and first.logprob < 0 and first.top_logprobs == []
    shown = b"".join(bytes(token.bytes) for token in tokens).decode("utf-8", "replace")
    assert (free.choices[0].message.content or "").strip() in shown

    form = await program.chat("How many pens?", free.choices[0].message, "In JSON.", response_format=FORM)
    assert form.choices[0].finish_reason == "stop"
    validate(json.loads(form.choices[0].message.content), SCHEMA)

    either = [await program.chat("Pens?", response_format=FORM, tools=[FUNCTION]) for _ in range(4)]
    for answer in either:
        message = answer.choices[0].message
        if message.tool_calls:
            validate(json.loads(message.tool_calls[0].function.arguments), ADD)
        else:
            validate(json.loads(message.content), SCHEMA)

    for choice, allowed in (("required", {"add", "sub"}), ({"type": "function", "function": {"name": "sub"}}, {"sub"})):
        answer = await program.chat("1 + 2?", tools=[FUNCTION, OTHER], tool_choice=choice)
        [call] = answer.choices[0].message.tool_calls
        assert call.function.name in allowed and answer.choices[0].finish_reason == "tool_calls"
        validate(json.loads(call.function.arguments), ADD)

    some = await program.chat("Pens?", response_format={"type": "json_object"}, max_tokens=150)
    if some.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(some.choices[0].message.content), dict)

    text: Any = {"format": {"type": "json_schema", "name": "pens", "schema": SCHEMA}}
    response = await program.client.responses.create(model="m", input="Pens?", text=text)
    validate(json.loads(response.output_text), SCHEMA)
    url = program.base_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=url, api_key=program.token, max_retries=0) as claude:
        config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        asked: list[Any] = [{"role": "user", "content": "Pens?"}]
        answer = await claude.messages.create(model="m", max_tokens=200, messages=asked, output_config=config)
        validate(json.loads(answer.content[0].text), SCHEMA)
        tool = {"name": "add", "input_schema": ADD}
        answer = await claude.messages.create(
            model="m", max_tokens=200, messages=asked, tools=[tool], tool_choice={"type": "any"}
        )
        assert (answer.content[0].type, answer.content[0].name, answer.stop_reason) == ("tool_use", "add", "tool_use")
    await program.chat("And now freely.", max_tokens=12)


async def refusals(program: Any) -> None:
    """What the engine cannot hold an answer to is refused, and the episode goes on."""
    for schema, sentence in REFUSED:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError) as error:
            await program.chat("Pens?", response_format=form)
        assert sentence in str(error.value), error.value


async def stops(program: Any) -> None:
    """A program's stop texts end the sampling: what a random model writes without them says which it can meet."""
    free = await program.client.completions.create(model="m", prompt="How many", max_tokens=30)
    text = free.choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 1] or "x"
    for _ in range(4):
        answer = await program.chat("How many pens?", max_tokens=40, stop=[stop, "e", "a"])
        assert not {stop, "e", "a"} & set(answer.choices[0].message.content or "")


def check_rows(episode: Episode) -> None:
    """A row has constrained tokens as the model's input only; the turn keeps what the engine said."""
    assert episode.is_trainable
    free = [turn for turn in episode.turns if not turn.constraint]
    formed = [turn for turn in episode.turns if turn.constraint]
    assert (len(free), len(formed)) == (2, 11)
    assert {turn.constraint for turn in formed} == set(episode.info["constraints"])
    assert episode.info["constraints"][formed[0].constraint] == {"schema": SCHEMA}
    assert all(turn.constrained == len(turn.token_ids) and turn.num_trained == 0 for turn in formed)
    assert all(turn.versions == ((0, len(turn.token_ids)),) for turn in formed), "the engine's version stays"
    assert any(logprob == 0.0 for turn in formed for logprob in turn.logprobs), "a forced token is certain"
    masks = [sum(row.loss_mask) for row in episode.rows]
    assert sum(masks) == sum(turn.num_trained for turn in episode.turns) == sum(len(turn.token_ids) for turn in free)
    for row in episode.rows:
        values = row
        assert not values.generator_logprobs[~values.loss_mask].any()
        assert (values.versions[~values.loss_mask] == -1).all()


def check_trainer(model: Path, episode: Episode) -> None:
    """The trainer's logprobs are the engine's on every token of the loss. On constrained tokens they are not."""
    trainer = TitanTrainer(model, TitanSettings(dtype="float32"))
    try:
        sample = Sample(rows=episode.rows, advantage=1.0)
        [own] = trainer.logprobs([sample])
        engine = np.concatenate([row.generator_logprobs[row.loss_mask] for row in episode.rows])
        assert len(own) == len(engine) > 0
        np.testing.assert_allclose(own, engine, atol=1e-4)
        metrics = trainer.train_step([sample], GRPOLoss())
        assert metrics["tokens"] == len(engine)
        assert metrics["skipped"] == 0.0
        # An episode without a free token has nothing to learn from, and is no error.
        [form, *_] = [row for row in episode.rows if not any(row.loss_mask)]
        metrics = trainer.train_step([sample, Sample(rows=(form,), advantage=1.0)], GRPOLoss())
        assert metrics["tokens"] == len(engine)
        assert trainer.train_step([Sample(rows=(form,), advantage=1.0)], GRPOLoss())["skipped"] == 1.0
    finally:
        trainer.close()
