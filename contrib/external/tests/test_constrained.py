"""Turns whose answer has a form: a thought is free, the answer is sampled under a grammar, and scripts are checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.dialects.harmony import ANSWER, END, THOUGHT
from agents.renderer.rendering import Renderer
from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from contrib.chat.agent import ChatAgent
from contrib.external.constraint import Constraint
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import PolicyError, TurnRefused
from forge_env.core.protocols import Conversation, NextTurn
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling, ToolSpec
from tests.agents.renderer.test_harmony import make_gpt_oss
from tests.agents.test_thought_budget import CLOSE, TASK, Writer

FORM = Constraint(schema=json.dumps({"type": "object", "properties": {"pens": {}}, "required": ["pens"]}))
PENS = '{"pens": 1}<|im_end|>'


def tool(name: str) -> ToolSpec:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}


class FormWriter(Writer):
    """Writes texts, and marks those of requests with a grammar, as an engine does."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        done = await super().generate(prompt_ids, sampling, request_id=request_id, session=session)
        return replace(done, constrained=len(done.token_ids) if sampling.grammar else 0)


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Renderer:
    return Renderer(tiny_model, thinking="on")


async def play(tiny_model: Path, policy: Writer, **limits: Any) -> Turn:
    agent = TokenAgent(str(tiny_model), policy, thinking="on")
    asked = NextTurn(constraint=FORM, stop=("never",))
    turn, _ = await agent.act(
        Conversation(request_id="c", seed=3, observation=TASK.prompt, next_turn=asked, **limits), ()
    )
    return turn


async def test_a_thought_is_free_and_the_answer_is_not(tiny_model: Path, renderer: Renderer) -> None:
    policy = FormWriter(renderer, "<think>\nhm hm\n</think>", PENS)
    turn = await play(tiny_model, policy, max_turn_tokens=60)
    thought, answer = renderer.encode("<think>\nhm hm\n</think>"), renderer.encode(PENS)
    between = renderer.encode(renderer.format.answers.after_thought)
    (_, first, _), (later, second, _) = policy.asked
    assert (first.grammar, first.stop, renderer.end_thought in first.stop_token_ids) == ("", (), True)
    assert second.grammar and second.stop == ("never",) and first.seed != second.seed
    assert list(turn.token_ids) == [*thought, *between, *answer] and list(later)[-len(between) :] == list(between)
    assert second.max_tokens == 60 - len(thought) - len(between)
    assert turn.constrained == len(answer) and turn.num_trained == len(thought)
    [row] = Episode(task=TASK, turns=(turn,), reward=0.0).rows
    assert sum(row.loss_mask) == len(thought)


async def test_channels_are_in_the_grammar(tmp_path: Path) -> None:
    """Of gpt-oss's answer the grammar says which channel it is in, so that a call may follow a thought, too."""
    folder = make_gpt_oss(tmp_path / "model")
    renderer = Renderer(folder, thinking="on")
    call = ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    for first in (f"{THOUGHT}Hm.<|end|>", f"{THOUGHT}Hm. Hm."):
        policy = FormWriter(renderer, first, call)
        agent = TokenAgent(str(folder), policy, thinking="on")
        asked = NextTurn(constraint=Constraint(tools=("add",)))
        limits: Any = {"max_turn_tokens": 200, "max_thinking_tokens": len(renderer.encode(f"{THOUGHT}Hm.<|end|>"))}
        turn, action = await agent.act(
            Conversation(request_id="c", observation=TASK.prompt, next_turn=asked, **limits), [tool("add")]
        )
        assert action.message["reasoning_content"].startswith("Hm.")
        assert [(called.name, called.arguments) for called in action.tool_calls] == [("add", {"a": 1})]
        assert renderer.decode(policy.asked[1][0]).endswith(END + ANSWER)
        assert turn.constrained == len(renderer.encode(call))


async def test_a_completion_without_a_thought_is_dropped(tiny_model: Path, renderer: Renderer) -> None:
    policy = FormWriter(renderer, "so it is<|im_end|>", PENS)
    turn = await play(tiny_model, policy, max_turn_tokens=60)
    (prompt, _, _), (later, second, _) = policy.asked
    assert later == prompt and second.grammar and second.max_tokens == 60
    assert list(turn.token_ids) == renderer.encode(PENS) and turn.constrained == len(turn.token_ids)


async def test_a_thought_that_a_limit_has_cut(tiny_model: Path, renderer: Renderer) -> None:
    """With a budget it is ended, and the answer follows; the turn's own limit leaves no answer."""
    text = "<think>\n" + "hm " * 40
    policy = FormWriter(renderer, text)
    turn = await play(tiny_model, policy, max_turn_tokens=20)
    assert (len(policy.asked), turn.finish_reason, turn.constrained) == (1, "length", 0)
    policy = FormWriter(renderer, text, PENS)
    turn = await play(tiny_model, policy, max_turn_tokens=60, max_thinking_tokens=12)
    thought = renderer.encode(text)[:12]
    assert list(turn.token_ids) == [*thought, *renderer.encode(CLOSE), *renderer.encode(PENS)]
    assert turn.num_trained == 12 and policy.asked[0][1].max_tokens == 12


async def test_a_policy_without_grammars_is_refused(tiny_model: Path, renderer: Renderer) -> None:
    with pytest.raises(TurnRefused, match="samples without grammars"):
        await play(tiny_model, Writer(renderer, "<think>\nhm\n</think>", PENS), max_turn_tokens=60)


@pytest.mark.parametrize(
    ("constraint", "message", "wrong"),
    [
        (FORM, {"content": '{"pens": 1}'}, ""),
        (FORM, {"content": "{}"}, "'pens' is a required property"),
        (FORM, {"content": "one"}, "is no JSON"),
        (Constraint(schema='{"multipleOf": 0.01}'), {"content": str(10**400)}, "a number in its JSON is too large"),
        (FORM, {"content": "", "tool_calls": ["add"]}, "no tool may be"),
        (Constraint(tools=("add",)), {"content": "", "tool_calls": ["add"]}, ""),
        (Constraint(tools=("add",)), {"content": "3"}, "calls no tool, and has to call add"),
        (Constraint(tools=("sub",)), {"content": "", "tool_calls": ["add"]}, "it calls add, and only sub may be"),
    ],
)
async def test_a_script_is_held_to_the_form(constraint: Constraint, message: dict[str, Any], wrong: str) -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in message.get("tool_calls", ())]
    said: Any = {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})}
    asked = Conversation(request_id="c", observation=TASK.prompt, next_turn=NextTurn(constraint=constraint))
    answer = ScriptedAgent(lambda messages: said).act(asked, [tool("add")])
    if wrong:
        with pytest.raises(PolicyError, match=wrong):
            await answer
    else:
        turn, _ = await answer
        assert turn.constraint == constraint.label


@pytest.mark.parametrize(
    ("constraint", "offered", "choice"),
    [
        (Constraint(tools=("b",)), ["b"], "required"),
        (Constraint(tools=("c", "a")), ["a", "c"], "required"),
        (Constraint(tools=("a", "b", "c")), ["a", "b", "c"], "required"),
        (Constraint(schema="{}", tools=("a", "b")), ["a", "b"], "auto"),
        (Constraint(schema="{}"), ["a", "b", "c"], "none"),
    ],
)
async def test_the_tools_that_an_answer_may_call_are_offered_alone(
    chat_server: Any, constraint: Constraint, offered: list[str], choice: str
) -> None:
    called = {"id": "abc", "type": "function", "function": {"name": offered[0], "arguments": "{}"}}
    chat_server.will(chat_server.says("{}") if constraint.schema else chat_server.says(None, tool_calls=[called]))
    conversation = Conversation(request_id="c", observation=TASK.prompt, next_turn=NextTurn(constraint=constraint))
    async with ChatAgent("m", chat_server.url, api_key_env="") as agent:
        turn, _ = await agent.act(conversation, [tool(name) for name in "abc"])
    body = chat_server.asked[0].body
    assert ([item["function"]["name"] for item in body["tools"]], body["tool_choice"]) == (offered, choice)
    assert ("response_format" in body) == bool(constraint.schema)
    assert turn.constraint == constraint.label
