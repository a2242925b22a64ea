"""Thinking: prompts are those of transformers in both modes; templates without thoughts refuse it or ignore it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agents.renderer.chat_template import QWEN3_TEMPLATE
from agents.renderer.rendering import Renderer
from agents.renderer.tokenizer import FastTokenizer
from envs.math import Math
from forge_env.core.errors import UserError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Message
from tests.helpers.tokenizer_folders import with_template
from tests.helpers.turns import add_turn, next_prompt

TOOLS = Math().tools
FIRST: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"})
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'
DRAFT = '<tool_call>\n{"name": "python", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def ours(tiny_model: Path) -> dict[bool, Renderer]:
    """Our renderer, by whether the model thinks."""
    return {False: Renderer(tiny_model), True: Renderer(tiny_model, thinking="on")}


@pytest.fixture(scope="module")
def thinker(ours: dict[bool, Renderer]) -> Renderer:
    return ours[True]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> FastTokenizer:
    return FastTokenizer(tiny_model)


@pytest.fixture(scope="module")
def theirs(tiny_model: Path, ours: dict[bool, Renderer]) -> Callable[..., str]:
    """What transformers renders with the template of a run."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def render(thinks: bool, messages: Any, tools: Any = (), *, prompt: bool) -> str:
        template = ours[thinks].format.template.source
        options = {"tools": list(tools) or None, "add_generation_prompt": prompt, "tokenize": False}
        return str(tokenizer.apply_chat_template(list(messages), chat_template=template, **options))

    return render


# ---- token by token, over conversations of several turns ----

text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<"), min_size=1, max_size=9).map(
    lambda t: t.strip() or "x"
)
answers = st.builds(
    lambda thought, content, calls: (thought, content, calls),
    st.just("") | text | st.just(f"a draft: {DRAFT} no"),
    text,
    st.booleans(),
)
turns = st.lists(st.tuples(answers, st.sampled_from(["tool", "user"]), text), min_size=1, max_size=5)


def spoken(thought: str, content: str, calls: bool, *, thinks: bool) -> str:
    """What a model samples that thinks `thought` before it answers."""
    begin = f"<think>\n{thought}\n</think>\n\n" if thinks and thought else ""
    return begin + content + (f"\n{CALL}" if calls else "") + "<|im_end|>"


@given(script=turns, with_tools=st.booleans(), thinks=st.booleans())
@example([(("so", "4", True), "tool", "2"), (("and", "5", False), "user", "sure?")], True, True)
@example([(("", "4", False), "user", "sure?"), (("yes", "5", True), "tool", "5")], False, True)
@example([(("", "4", True), "tool", "2"), (("", "5", False), "user", "sure?")], True, False)
def test_prompts_are_those_of_transformers(
    ours: dict[bool, Renderer],
    tokenizer: FastTokenizer,
    theirs: Callable[..., str],
    script: list[Any],
    with_tools: bool,
    thinks: bool,
) -> None:
    """Every prompt is the text that transformers renders of the whole conversation, and goes on from the row so far."""
    renderer = ours[thinks]
    tools = TOOLS if with_tools else ()
    conversation = Conversation(request_id="c", observation=FIRST)
    row: list[int] = []
    for (thought, content, calls), role, reply in script:
        calls = calls and with_tools
        sampled = tokenizer.encode(spoken(thought, content, calls, thinks=thinks))
        rendered = theirs(thinks, map(renderer.format.prepare, conversation.messages), tools, prompt=True)
        prompt, old = add_turn(renderer, conversation, sampled, tools)
        assert tokenizer.decode(prompt) == rendered
        assert prompt[:old] == row[:old] and old in (0, len(row))
        message = conversation.turns[-1].message
        assert message.get("reasoning_content", "") == (thought.strip() if thinks else "")
        assert [c["function"]["name"] for c in message.get("tool_calls", [])] == ["calculator"] * calls
        row = [*prompt, *sampled]
        conversation.observation = ({"role": role, "content": reply},)


@given(thought=text, content=text, calls=st.booleans())
def test_a_demonstration_has_its_thought_or_an_empty_one(
    thinker: Renderer, tokenizer: FastTokenizer, theirs: Callable[..., str], thought: str, content: str, calls: bool
) -> None:
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1 + 1"}}}
    plain: Message = {"role": "assistant", "content": content, "tool_calls": [call] * calls}
    thoughtful: Message = {**plain, "reasoning_content": thought}
    for message, written in ((thoughtful, thought), (plain, "")):
        prompt, *_ = next_prompt(thinker, Conversation(request_id="c", observation=FIRST), TOOLS)
        ids = thinker.write(message)
        assert tokenizer.decode([*prompt, *ids]) + "\n" == theirs(True, [*FIRST, message], TOOLS, prompt=False)
        assert tokenizer.decode(ids).startswith(f"<think>\n{written}\n</think>\n\n")
        assert thinker.read(ids, "stop").message.get("reasoning_content", "") == written


def test_thoughts_stay_in_a_loop_of_tools_and_a_question_begins_a_row_without_them(
    thinker: Renderer, tokenizer: FastTokenizer
) -> None:
    conversation = Conversation(request_id="c", observation=FIRST)
    add_turn(thinker, conversation, tokenizer.encode(spoken("hm", "so", True, thinks=True)), TOOLS)
    conversation.observation = ({"role": "tool", "content": "2", "tool_call_id": "call_0"},)
    prompt, old = add_turn(thinker, conversation, tokenizer.encode(spoken("ah", "4", False, thinks=True)), TOOLS)
    assert old > 0 and "<think>\nhm\n</think>" in tokenizer.decode(prompt)
    conversation.observation = ({"role": "user", "content": "sure?"},)
    prompt, old, starts_row = next_prompt(thinker, conversation, TOOLS)
    assert (old, starts_row) == (0, True)
    text = tokenizer.decode(prompt)
    assert "<think>" not in text and "so\n<tool_call>" in text and text.endswith("<|im_start|>assistant\n")


def test_a_row_goes_on_after_an_answer_without_a_thought(thinker: Renderer, tokenizer: FastTokenizer) -> None:
    conversation = Conversation(request_id="c", observation=FIRST)
    answer = tokenizer.encode("4<|im_end|>")
    first, _ = add_turn(thinker, conversation, answer, TOOLS)
    conversation.observation = ({"role": "user", "content": "sure?"},)
    prompt, old, starts_row = next_prompt(thinker, conversation, TOOLS)
    assert prompt[:old] == [*first, *answer] and not starts_row


# ---- reading ----


@pytest.mark.parametrize(
    ("sampled", "finish", "thought", "content", "calls"),
    [
        (f"<think>\nhm {DRAFT}\n</think>\n\n4{CALL}<|im_end|>", "stop", f"hm {DRAFT}", "4", ["calculator"]),
        (f"<think>\nhm {DRAFT} no", "length", f"hm {DRAFT} no", "", []),  # cut off: the call may be a draft
        (f"<think>\nhm {CALL}<|im_end|>", "stop", "hm", "", ["calculator"]),  # the model has called and ended its turn
        ("<think>\nhm", "length", "hm", "", []),
        ("4", "length", None, "4", []),
        (f"4 <think>{CALL}", "length", None, "4 <think>", ["calculator"]),  # not at the beginning: no thought
    ],
)
def test_what_a_thinking_model_wrote_is_read(
    thinker: Renderer,
    tokenizer: FastTokenizer,
    sampled: str,
    finish: str,
    thought: str | None,
    content: str,
    calls: list[str],
) -> None:
    action = thinker.read(tokenizer.encode(sampled), finish)
    assert action.message.get("reasoning_content") == thought
    assert action.text.strip() == content and [call.name for call in action.tool_calls] == calls
    assert action.finish_reason == finish


# ---- families and templates ----


def test_a_template_without_thinking_refuses_on_and_ignores_the_rest(tiny_model: Path, tmp_path: Path) -> None:
    flag = "{%- set thinks = enable_thinking is not defined or enable_thinking -%}"
    never = QWEN3_TEMPLATE.read_text().replace(flag, "").replace("think>", "b>")
    folder = with_template(tiny_model, tmp_path / "never", never)
    with pytest.raises(UserError, match=r"thinking is on, and the model in .*never has no thinking.*set it to off"):
        Renderer(folder, thinking="on")
    conversation = Conversation(request_id="c", observation=FIRST)
    off, template = Renderer(folder), Renderer(folder, thinking="template")
    assert not template.thinks and template.close_thought == ()
    assert next_prompt(off, conversation, TOOLS) == next_prompt(template, conversation, TOOLS)


BEGUN = {
    "a line end that is escaped": r"{{- '<think>\n' }}",
    "a line end as it is": "{{- '<think>\n' }}",
    "an expression": r"{{- '<thi' + 'nk>' + '\n' }}",
}


@pytest.mark.parametrize("case", BEGUN)
def test_a_thought_that_the_template_begins_is_known_however_it_is_written(
    tiny_model: Path, tmp_path: Path, case: str
) -> None:
    """The prompt has the mark, what is sampled has not, and the record's thought is whole."""
    empty = r"{%- if not thinks %}{{ '<think>\n\n</think>\n\n' }}{% endif -%}"
    begun = with_template(tiny_model, tmp_path / "m", QWEN3_TEMPLATE.read_text().replace(empty, BEGUN[case]))
    renderer = Renderer(begun, thinking="on")
    prompt, *_ = next_prompt(renderer, Conversation(request_id="c", observation=FIRST), TOOLS)
    assert renderer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n")
    thought, answer = "hm", f"so\n{CALL}"
    sampled = renderer.encode(f"{thought}\n</think>\n\n{answer}<|im_end|>")
    assert renderer.is_in_thought(renderer.encode(thought)) and not renderer.is_in_thought(sampled)
    message = renderer.read(sampled, "stop", TOOLS).message
    assert (message["reasoning_content"], message["content"]) == (thought, "so")
    assert renderer.write(message, TOOLS) == sampled
    with pytest.raises(UserError, match="thinking is off, and the chat template in .* begins a thought"):
        Renderer(begun, thinking="off")


def test_an_unknown_setting_is_named(tiny_model: Path) -> None:
    with pytest.raises(UserError, match="thinking is 'of'. Did you mean off"):
        Renderer(tiny_model, thinking="of")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="renderer.tools is 'texts'. Did you mean text"):
        Renderer(tiny_model, tools="texts")  # type: ignore[arg-type]
