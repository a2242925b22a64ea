"""The form of an answer, and its logprobs, in each dialect: what reaches the engine, the loss and the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from agents.renderer.rendering import Renderer
from agents.token_agent import TokenAgent
from contrib.external.tests.external_playing import Play, calls
from contrib.external.tests.test_external_bad_input import SDKS, connected, refused
from tests.helpers.scripted_policy import ScriptedPolicy

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"pens": {"type": "integer"}}, "required": ["pens"]}
PENS = '{"pens": 2}'
FUNCTION = {"name": "add", "description": "Add.", "parameters": SCHEMA}
FORMS: dict[str, list[dict[str, Any]]] = {
    "chat": [{"response_format": {"type": "json_schema", "json_schema": {"name": "pens", "schema": SCHEMA}}}],
    "responses": [{"text": {"format": {"type": "json_schema", "name": "pens", "schema": SCHEMA}}}],
    "anthropic": [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"extra_body": {"output_format": {"type": "json_schema", "schema": SCHEMA}}},
    ],
}
"""What asks for a schema."""
TOOLS: dict[str, dict[str, Any]] = {
    "chat": {"tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"tools": [{"type": "function", **FUNCTION}]},
    "anthropic": {"tools": [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]},
}
FORCED: dict[str, list[Any]] = {
    "chat": ["required", {"type": "function", "function": {"name": "add"}}],
    "responses": ["required", {"type": "function", "name": "add"}],
    "anthropic": [{"type": "any"}, {"type": "tool", "name": "add"}],
}
"""What forces a call."""


def text_of(answer: Any) -> str:
    if hasattr(answer, "choices"):
        return answer.choices[0].message.content
    return answer.output_text if hasattr(answer, "output_text") else answer.content[0].text


def call_of(answer: Any) -> tuple[str, str]:
    """The name of the tool that is called, and why the answer ended."""
    if hasattr(answer, "choices"):
        return answer.choices[0].message.tool_calls[0].function.name, answer.choices[0].finish_reason
    if hasattr(answer, "output"):
        return answer.output[0].name, answer.status
    return answer.content[0].name, answer.stop_reason


@pytest.mark.parametrize("name", SDKS)
async def test_a_schema_is_the_engines_grammar_and_no_loss_is_over_what_it_has_masked(play: Play, name: str) -> None:
    sdk = SDKS[name]
    async with play(*[PENS] * len(FORMS[name]), "free") as program:
        async with connected(sdk, program) as client:
            assert [text_of(await sdk.ask(client, **form)) for form in FORMS[name]] == [PENS] * len(FORMS[name])
            await sdk.ask(client)
        episode = await program.end()
    *formed, free = episode.turns
    grammars = [sampling.grammar for _, sampling, _ in program.requests]
    assert all('"pens"' in grammar for grammar in grammars[:-1]) and not grammars[-1]
    assert all(turn.constrained == len(turn.token_ids) and turn.num_trained == 0 for turn in formed)
    assert (free.constrained, free.num_trained) == (0, len(free.token_ids))
    assert [*episode.info["constraints"].values()] == [{"schema": SCHEMA}]


@pytest.mark.parametrize("name", SDKS)
async def test_a_call_can_be_forced(play: Play, name: str) -> None:
    sdk = SDKS[name]
    ends = {"chat": "tool_calls", "responses": "completed", "anthropic": "tool_use"}
    async with play(calls("add", pens=2), calls("add", pens=2)) as program:
        async with connected(sdk, program) as client:
            for choice in FORCED[name]:
                answer = await sdk.ask(client, tool_choice=choice, **TOOLS[name])
                assert call_of(answer) == ("add", ends[name])
            other = {"chat": {"type": "function", "function": {"name": "sub"}}, "anthropic": {"type": "tool"}}
            unknown = other.get(name, {"type": "function"}) | ({} if name == "chat" else {"name": "sub"})
            asking = sdk.ask(client, tool_choice=unknown, **TOOLS[name])
            await refused(sdk.errors.BadRequestError, asking, "asks for the tool 'sub', and the tools are add")
        episode = await program.end()
    assert all("add" in sampling.grammar for _, sampling, _ in program.requests)
    assert [turn.num_trained for turn in episode.turns] == [0, 0]


async def test_a_policy_that_knows_no_grammar_refuses_a_form_in_one_sentence(play: Play, tiny_model: Path) -> None:
    ids = Renderer(tiny_model).write({"role": "assistant", "content": PENS})
    agent = TokenAgent(str(tiny_model), ScriptedPolicy(lambda prompt: ids))
    async with play(agent=agent) as program:
        asking = program.chat("hi", **FORMS["chat"][0])
        await refused(openai.BadRequestError, asking, "the policy samples without grammars")
        await program.chat("hi")
        assert (await program.end()).info["refused_requests"] == {"unsupported_form": 1}


async def test_logprobs_are_those_of_the_record(play: Play) -> None:
    """Of chat completions and of responses; a message of Anthropic's has no place for them."""
    async with play("fine", "fine") as program:
        chat = await program.chat("hi", logprobs=True)
        include: Any = ["message.output_text.logprobs"]
        response: Any = await program.client.responses.create(model="m", input="hi", include=include)
        episode = await program.end()
    recorded = [turn.logprobs[:-1].tolist() for turn in episode.turns]  # without the token that ended it
    assert [token.logprob for token in chat.choices[0].logprobs.content] == recorded[0]
    assert [token.logprob for token in response.output[0].content[0].logprobs] == recorded[1]
