"""Prompt parts give the tokens that the template gives, or there are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.renderer.rendering import Renderer
from agents.renderer.template_parts import learn_template_parts
from agents.renderer.tokenizer import FastTokenizer
from envs.math import Math
from forge_env.core.episode import Turn
from forge_env.core.protocols import Conversation
from forge_env.core.types import Message
from tests.helpers.turns import next_prompt

TOOLS = Math().tools


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Renderer:
    return Renderer(tiny_model)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Renderer:
    """The same without parts: the template renders everything."""
    made = Renderer(tiny_model)
    made._bridges = {}
    made._learn_first_prompt = lambda others, tools: None  # type: ignore[method-assign]
    return made


contents = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["<|im_end|>", "<think>", "</tool_response>", "\n", " ", "12", "<tool_call>", "é", "\ud800", "@probe@"]
    ),
    max_size=8,
).map("".join)


def test_the_tiny_models_template_has_parts(renderer: Renderer) -> None:
    """Else everything below compares the template with itself."""
    assert renderer._bridges["tool"] is not None
    next_prompt(renderer, Conversation(request_id="c", observation=({"role": "user", "content": "?"},)), TOOLS)
    assert all(parts is not None for parts in renderer._first_prompts.values()) and renderer._first_prompts


@given(content=contents, system=st.sampled_from(["", "Be brief.", "漢字 \n"]), with_tools=st.booleans())
def test_first_prompts_are_the_templates(
    renderer: Renderer, plain: Renderer, content: str, system: str, with_tools: bool
) -> None:
    first: tuple[Message, ...] = ({"role": "user", "content": content},)
    if system:
        first = ({"role": "system", "content": system}, *first)
    conversation = Conversation(request_id="c", observation=first)
    tools = TOOLS if with_tools else ()
    assert next_prompt(renderer, conversation, tools) == next_prompt(plain, conversation, tools)


@given(
    roles=st.lists(st.sampled_from(["tool", "tool", "tool", "user"]), min_size=1, max_size=4),
    texts=st.lists(contents, min_size=4, max_size=4),
    answer=st.sampled_from(["4", "", "<think>\nso\n</think>\n4", '<tool_call>\n{"name": "a"}\n</tool_call>']),
    ends=st.booleans(),
)
def test_bridges_are_the_templates(
    renderer: Renderer, plain: Renderer, roles: list[str], texts: list[str], answer: str, ends: bool
) -> None:
    first: tuple[Message, ...] = ({"role": "user", "content": "2 + 2?"},)
    start = Conversation(request_id="c", observation=first)
    prompt, _, _ = next_prompt(plain, start, TOOLS)
    token_ids = plain.encode(answer) + list(plain.stop_token_ids[:1]) * (ends or not answer)
    turn = Turn(
        kind="tokens",
        observation=first,
        message={"role": "assistant", "content": answer},
        prompt_ids=tuple(prompt),
        token_ids=tuple(token_ids),
        starts_row=True,
    )
    new: list[Message] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]  # type: ignore[typeddict-item]
    conversation = Conversation(request_id="c", turns=[turn], observation=tuple(new))
    assert next_prompt(renderer, conversation, TOOLS) == next_prompt(plain, conversation, TOOLS)


@pytest.mark.parametrize("change", ["strips", "escapes", "merges", "counts", "refuses"])
def test_a_template_that_changes_contents_has_no_parts(tiny_model: Path, change: str) -> None:
    tokenizer = FastTokenizer(tiny_model)

    def render(texts: Sequence[str]) -> list[int] | None:
        changed = {
            "strips": [text.strip() for text in texts],
            "escapes": [text.replace("<", "&lt;") for text in texts],
            "merges": ["".join(texts)],
            "counts": [f"{len(texts)} {text}" for text in texts],
            "refuses": list(texts),
        }[change]
        if change == "refuses" and "1234" in texts[0]:
            return None
        return tokenizer.encode("".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in changed))

    assert learn_template_parts(tokenizer, render, most=3) is None
