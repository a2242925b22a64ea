"""Messages to tokens and back. Sampled tokens are never tokenised again.

Only the renderer writes special tokens. If a message or the spec of a tool spells one out, in any of its fields, it
becomes plain text: a space follows its first character. The prompt is then tokenised in one piece, as servers do it.

The `renderers` library has the templates of the model families. The prompt of a new turn continues the sampled ids. If
the template would rewrite earlier turns, the next turn starts a new row.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from renderers.base import ParsedToolCall, ToolCallParseStatus

from agents.renderer.dialects import parse, to_openai
from agents.renderer.families import (
    AFTER_THOUGHT,
    CLOSE_THOUGHT,
    END_THINK,
    THINK,
    Thinking,
    check_thinking,
    find_family,
)
from agents.renderer.grammar import grammar_of
from agents.renderer.model_json import arguments_of, decode_all, dump, read_arguments
from agents.renderer.template_parts import TemplateParts, learn_template_parts
from agents.renderer.tokenizer import FastTokenizer, chat_template
from forge_env.core.constraint import Constraint
from forge_env.core.errors import TemplateError, UserError
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, NO_IDS, Ids, as_list, join_arrays
from forge_env.core.types import Action, Message, ToolCall, ToolSpec


class Renderer:
    """Renders conversations for the model in a Hugging Face folder: Qwen3, dense and MoE, Qwen2.5, Llama from 3.1 on.

    Args:
        model: the folder.
        thinking: whether the model thinks before it answers. Without thinking, a prompt of Qwen3 ends with an empty
            thought. With thinking, the thoughts of earlier turns are kept or dropped as the family's template does:
            Qwen3 keeps the thoughts since the last message of a user, so they stay through a loop of tool calls.

    Raises:
        UserError: the model family is not supported, the tokenizer is not of this family, or `thinking` is "on" and the
            model has no thinking.
    """

    def __init__(self, model: str | Path, *, thinking: Thinking = "off") -> None:
        self._family = find_family(Path(model))
        self.thinks = check_thinking(Path(model), thinking)
        self._tokenizer = FastTokenizer(model)
        create = self._family.create_thinking if self.thinks else self._family.create
        assert create is not None, "check_thinking has found the family to have thinking"
        try:
            self._renderer = create(self._tokenizer, chat_template(Path(model)))
        except AssertionError as error:
            raise UserError(f"the tokenizer in {model} is not of the model's family: {error}") from None
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())
        special = sorted([*self._tokenizer.special_tokens, *self._family.marks], key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._think, self._end_think = self._tokenizer.convert_tokens_to_ids([THINK, END_THINK])
        self.close_thought: tuple[int, ...] = tuple(self._tokenizer.encode(CLOSE_THOUGHT)) if self.thinks else ()
        """The tokens that end a thought; the answer comes next."""
        self.end_thought: int = self._end_think
        """The token that ends a thought."""
        self.after_thought: tuple[int, ...] = tuple(self._tokenizer.encode(AFTER_THOUGHT)) if self.thinks else ()
        """The tokens between `end_thought` and the answer."""
        self._first_prompts: dict[Any, TemplateParts | None] = {}
        self._tools: dict[int, tuple[Sequence[ToolSpec], Sequence[ToolSpec], str]] = {}
        self._bridges = {role: self._learn_bridge(role) for role in ("tool", "user")}

    def next_prompt(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[np.ndarray, list[int]]:
        """The next prompt in two parts: the tokens of earlier turns, none if a row starts, and the new tokens."""
        row = _last_row(conversation)
        tools, text_of_tools = self._defused_tools(tools)
        if len(row):
            new = self._defused(conversation.observation)
            bridged = self._bridge(row, conversation.turns[-1].token_ids.tolist(), new, tools)
            if bridged is not None:
                return row, bridged
        if not conversation.turns:
            return NO_IDS, self._first_prompt(self._defused(conversation.observation), tools, text_of_tools)
        messages = self._defused(conversation.messages)
        if self._family.one_call:
            messages = _one_call_each(messages)
        prompt = self._render(messages, tools, add_generation_prompt=True)
        if self.thinks and len(row) and prompt[: len(row)] == row.tolist():  # no thought to drop: nothing is rewritten
            return row, prompt[len(row) :]
        return NO_IDS, prompt

    def plain_prompt(self, conversation: Conversation, prompt: str | Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Like `next_prompt`, for a prompt without a template.

        A prompt that begins with the full last row continues the row's tokens.

        Raises:
            TemplateError: it is empty, or has a token outside the vocabulary.
        """
        row = _last_row(conversation)
        if isinstance(prompt, str):
            text = self.decode(row)
            is_old = len(row) > 0 and prompt.startswith(text) and len(prompt) > len(text)
            new = self.encode(prompt[len(text) :] if is_old else prompt)
        else:
            is_old = 0 < len(row) < len(prompt) and list(prompt[: len(row)]) == row.tolist()
            new = list(prompt[len(row) :] if is_old else prompt)
        if not new:
            raise TemplateError("the prompt to complete is empty: write at least one token")
        if wrong := [token for token in new if not 0 <= token < len(self._tokenizer)]:
            raise TemplateError(
                f"token {wrong[0]} of the prompt is not in the vocabulary, which is 0 to {len(self._tokenizer) - 1}"
            )
        return (row if is_old else NO_IDS), new

    def write(self, message: Message) -> list[int]:
        """The tokens of `message` as a model would sample them, with the end-of-turn token.

        With thinking they begin with the message's reasoning, or with an empty thought, as the template renders it.

        Raises:
            UserError: the message has reasoning, and the model does not think.
        """
        question: list[Any] = [{"role": "user", "content": "?"}]
        prompt = self._tokenizer.decode(self._render(question, add_generation_prompt=True))
        full = self._tokenizer.decode(self._render([*question, *self._defused([message])]))
        if not full.startswith(prompt):
            raise UserError(
                f"a scripted message holds reasoning, and the model in {self._tokenizer.name_or_path} answers without: "
                f"let it think (thinking on), or leave reasoning_content out of {message!r}"
            )
        # Text rather than ids: no model could sample a token that spans the end of the prompt.
        answer = self._tokenizer.encode(full[len(prompt) :])
        return answer[: next(i for i, t in enumerate(answer) if t in self.stop_token_ids) + 1]

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens in it are recognised."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Ids) -> str:
        """Text of tokens, with special tokens."""
        return self._tokenizer.decode(token_ids)

    def plain_text(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the stop token."""
        ended = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        return self.decode(token_ids[:-1] if ended else token_ids)

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """A conversation as a template writes it, with special tokens, also those that a message spells out."""
        return self._tokenizer.decode(self._render(messages, tools))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may be a part of a character."""
        return self._tokenizer.token_bytes(token_id)

    def grammar(self, constraint: Constraint, tools: Sequence[ToolSpec]) -> str:
        """The grammar of an answer, for `Sampling.grammar`.

        Args:
            constraint: the form of the answer.
            tools: the tools that it may name.

        Raises:
            TurnRefused: it names a tool that is not one of them.
        """
        return grammar_of(constraint, tools, self._family.calls, self._tokenizer.convert_tokens_to_ids)

    def is_in_thought(self, token_ids: Sequence[int]) -> bool:
        """Whether the tokens of a turn begin with a thought and do not end it."""
        if self._think not in token_ids or self._end_think in token_ids:
            return False
        return not self.decode(token_ids[: list(token_ids).index(self._think)]).strip()

    def read(self, token_ids: Ids, finish_reason: str) -> Action:
        """Parse sampled tokens into an action. No sampled text raises.

        A thought becomes `reasoning_content`, and a call in it is no call. A call ends a thought that has no end of its
        own, unless a limit has cut the thought off.
        """
        token_ids = as_list(token_ids)
        if self.thinks and finish_reason == "length" and self.is_in_thought(token_ids):
            return self._cut_thought(token_ids)
        try:
            # Without the prompt: it matters only if it opens the reasoning, and no supported template opens it.
            parsed = self._renderer.parse_response(token_ids)
        except (ValueError, RecursionError, TypeError, KeyError) as error:  # JSON too deep, numbers too long
            return self._unreadable(token_ids, finish_reason, error)
        content = parsed.content or ""
        calls = tuple([_tool_call(i, call) for i, call in enumerate(parsed.tool_calls)])
        if not calls:
            content, calls = parse(content, self._family.dialect)
        message: Message = {"role": "assistant", "content": content}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        if calls:
            message["tool_calls"] = to_openai(calls)
        return Action(message=message, tool_calls=calls, finish_reason=finish_reason)

    def _cut_thought(self, token_ids: Sequence[int]) -> Action:
        thought = self.decode([t for t in token_ids[list(token_ids).index(self._think) :] if t != self._think])
        message: Message = {"role": "assistant", "content": "", "reasoning_content": thought}
        return Action(message=message, finish_reason="length")

    def _unreadable(self, token_ids: Sequence[int], finish_reason: str, error: Exception) -> Action:
        text = self._tokenizer.decode([t for t in token_ids if t not in self.stop_token_ids])
        call = ToolCall(id="call_0", name="", arguments=None, raw=text, error=f"It could not be read: {error}.")
        return Action(message={"role": "assistant", "content": text}, tool_calls=(call,), finish_reason=finish_reason)

    def _render(
        self, messages: Sequence[Any], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = False
    ) -> list[int]:
        try:
            ids = self._renderer.render_ids(
                list(messages), tools=list(tools) or None, add_generation_prompt=add_generation_prompt
            )
        except ValueError as error:
            where = self._tokenizer.name_or_path
            raise TemplateError(
                f"the template of the model in {where} has no place for this conversation: {error}"
            ) from None
        return self._as_served(ids)

    def _as_served(self, ids: Sequence[int]) -> list[int]:
        """Rendered tokens as a server makes them, by tokenising a rendered text in one piece.

        The `renderers` library tokenises the parts of a template separately, and a token may span two parts. Special
        tokens split a text, so the text after one can be tokenised without the text before it.
        """
        return self._tokenizer.encode(self._tokenizer.decode(ids))

    def _defused(self, messages: Sequence[Message]) -> list[Message]:
        """Keep messages from forging turns: if one of their fields spells out a special token, it becomes plain
        text."""
        return [self._defused_message(message) for message in messages]

    def _defused_message(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return {**message, "content": self._defuse(message["content"])}
        if self._family.create_thinking is not None:
            message = _with_thought(message)
        defused: Message = self._defuse({key: value for key, value in message.items() if key != "tool_calls"})
        if "tool_calls" in message:
            defused["tool_calls"] = [self._defused_call(call) for call in message["tool_calls"] or ()]
        return defused

    def _defused_call(self, call: Any) -> Any:
        """Defuse a call. JSON escapes in the text of its arguments can spell out a token for a template, too."""
        function = call.get("function", call) if isinstance(call, Mapping) else None
        text = function.get("arguments") if isinstance(function, Mapping) else None
        if function is not None and isinstance(text, str) and "\\" in text:
            arguments, problem = decode_all(text)
            if not problem and self._special.search(written := dump(arguments)):
                function = {**function, "arguments": written}
                call = {**call, "function": function} if "function" in call else function
        return self._defuse(call)

    def _defuse(self, value: Any) -> Any:
        """A value with all of its texts defused, keys too."""
        if isinstance(value, str):
            text = value if value.isascii() else value.encode("utf-8", "replace").decode()  # a lone surrogate: no token
            return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        if isinstance(value, Mapping):
            return {self._defuse(key): self._defuse(item) for key, item in value.items()}
        return [self._defuse(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _bridge(
        self, row: np.ndarray, sampled: list[int], new: list[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        """The tokens of new messages that continue a row; None if the template would rewrite the row."""
        role = new[0]["role"] if new else ""
        parts = self._bridges.get(role)
        # If a turn ended with the stop token, without reasoning, the continuation depends on the new messages only.
        is_plain = sampled[-1] == self.stop_token_ids[0] and self._think not in sampled
        if parts is not None and is_plain and all(message["role"] == role for message in new):
            return parts.fill(self._tokenizer, [message["content"] for message in new])
        before = row[: -len(sampled)].tolist()
        bridged = self._renderer.bridge_to_next_turn(before, sampled, new, tools=list(tools) or None)
        if bridged is None or bridged.token_ids[: len(row)] != before + sampled:
            return None
        return self._as_served(bridged.token_ids[len(row) :])

    def _learn_bridge(self, role: str) -> TemplateParts | None:
        """Learn the template parts of messages that follow a turn of the model."""
        end = self.stop_token_ids[0]
        question: list[Any] = [{"role": "user", "content": "?"}]
        before = self._render(question, add_generation_prompt=True)
        sampled = [*self._tokenizer.encode("a"), end]

        def render(contents: Sequence[str]) -> list[int] | None:
            new: list[Any] = [{"role": role, "content": content} for content in contents]
            bridged = self._renderer.bridge_to_next_turn(before, sampled, new)
            row = [*before, *sampled]
            if bridged is None or bridged.token_ids[: len(row)] != row:
                return None
            return self._as_served(bridged.token_ids[len(row) :])

        return learn_template_parts(self._tokenizer, render, most=3)

    def _first_prompt(self, messages: list[Message], tools: Sequence[ToolSpec], text_of_tools: str) -> list[int]:
        """Render a first prompt. First prompts of one environment differ only in the last message."""
        *others, last = messages
        if last["role"] != "user":
            return self._render(messages, tools, add_generation_prompt=True)
        key = (text_of_tools, *((m["role"], m["content"]) for m in others))
        if any(m.keys() != {"role", "content"} for m in others):
            return self._render(messages, tools, add_generation_prompt=True)
        if key not in self._first_prompts:
            if len(self._first_prompts) >= 64:
                self._first_prompts.clear()
            self._first_prompts[key] = self._learn_first_prompt(others, tools)
        parts = self._first_prompts[key]
        if parts is None:
            return self._render(messages, tools, add_generation_prompt=True)
        return parts.fill(self._tokenizer, [last["content"]])

    def _defused_tools(self, tools: Sequence[ToolSpec]) -> tuple[Sequence[ToolSpec], str]:
        """The defused tools, and their text; instances of an environment share one list, which is read once."""
        cached = self._tools.get(id(tools))
        if cached is None or cached[0] is not tools:
            if len(self._tools) >= 64:
                self._tools.clear()
            defused = self._defuse(list(tools))
            cached = self._tools[id(tools)] = (tools, defused, json.dumps(defused))
        return cached[1:]

    def _learn_first_prompt(self, others: list[Message], tools: Sequence[ToolSpec]) -> TemplateParts | None:
        def render(contents: Sequence[str]) -> list[int]:
            last: Message = {"role": "user", "content": contents[0]}
            return self._render([*others, last], tools, add_generation_prompt=True)

        return learn_template_parts(self._tokenizer, render)


def _with_thought(message: Message) -> Message:
    """A message with its thought as its reasoning, as templates read it, if its content begins with a thought."""
    thought, end, rest = message["content"].lstrip().partition(END_THINK)
    if "reasoning_content" in message or not end or not thought.startswith(THINK):
        return message
    return {**message, "reasoning_content": thought.removeprefix(THINK).strip("\n"), "content": rest.lstrip("\n")}


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Split assistant messages with several calls, for templates with one call per message."""
    split: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls", [])
        split += [message] if len(calls) < 2 else [{**message, "tool_calls": [call]} for call in calls]
    return split


def _last_row(conversation: Conversation) -> np.ndarray:
    parts: list[np.ndarray] = []
    for turn in conversation.turns:
        if turn.starts_row:
            parts.clear()
        parts += (turn.prompt_ids, turn.token_ids)
    return join_arrays(IDS, *parts)


def _tool_call(index: int, parsed: ParsedToolCall) -> ToolCall:
    name = parsed.name if isinstance(parsed.name, str) else ""
    arguments, problem = read_arguments(parsed.arguments)
    written = None if parsed.arguments else decode_all(parsed.raw)[0]
    if isinstance(written, dict) and "name" in written:  # the parser knows only one of the two keys
        arguments, problem = arguments_of(written)
    why = ""
    if parsed.status is not ToolCallParseStatus.OK:
        why = f"The call could not be read: {parsed.status.value}."
    elif not name or (arguments is None and " not a JSON object" in problem):
        why = 'A call is a JSON object with a "name" and an object of "arguments".'
    elif problem:
        why = f"The call could not be read: {problem}."
    if why:
        return ToolCall(id=_call_id(index), name=name, arguments=None, raw=parsed.raw, error=why)
    # Interned: thousands of live episodes call the same few tools.
    return ToolCall(id=parsed.id or _call_id(index), name=sys.intern(name), arguments=arguments)


@functools.cache
def _call_id(index: int) -> str:
    return f"call_{index}"
