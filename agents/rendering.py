"""Messages to tokens and back, without ever re-tokenising what the model wrote.

The `renderers` library knows each model family's template. A new turn is bridged onto the sampled ids; where a template
would rewrite history the bridge is refused, and the next turn starts a new row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from renderers import Qwen3RendererConfig, create_renderer
from renderers.base import ParsedToolCall, ToolCallParseStatus

from agents.tokenizer import FastTokenizer
from forge_env.errors import UserError
from forge_env.protocols import Conversation
from forge_env.types import Action, Message, ToolCall, ToolSpec

# architecture of config.json -> renderer configuration without thinking
_FAMILIES = {"Qwen3ForCausalLM": lambda: Qwen3RendererConfig(enable_thinking=False)}


class Renderer:
    """Renders conversations for the model in a Hugging Face folder.

    Raises:
        UserError: when the folder's model family has no renderer, or it holds no tokenizer.
    """

    def __init__(self, model: str | Path) -> None:
        config = json.loads((Path(model) / "config.json").read_text())
        family = (config.get("architectures") or ["unknown"])[0]
        if family not in _FAMILIES:
            known = ", ".join(_FAMILIES)
            raise UserError(f"the model in {model} is a {family}; renderers are set up for: {known}")
        self._tokenizer = FastTokenizer(model)
        self._renderer = create_renderer(self._tokenizer, _FAMILIES[family]())
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())
        special = sorted(self._tokenizer.special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._starts: dict[str, list[int]] = {}

    def next_prompt(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[list[int], int, bool]:
        """Return the next prompt, how many of its tokens are old (0 for a new row), and whether a row starts."""
        row = _last_row(conversation)
        if row:
            *_, last = conversation.turns
            before, sampled = row[: -len(last.token_ids)], list(last.token_ids)
            bridged = self._renderer.bridge_to_next_turn(
                before, sampled, self._defused(conversation.observation), tools=list(tools) or None
            )
            if bridged is not None and bridged.token_ids[: len(row)] == row:
                return list(bridged.token_ids), len(row), False
        if not conversation.turns:
            return self._first_prompt(self._defused(conversation.observation), tools), 0, True
        messages = self._defused(conversation.messages)
        prompt = self._renderer.render_ids(messages, tools=list(tools) or None, add_generation_prompt=True)
        return list(prompt), 0, True

    def write(self, message: Message) -> list[int]:
        """Return the tokens with which a model would have written `message`, up to and with its end-of-turn token."""
        question: list[Any] = [{"role": "user", "content": "?"}]
        prompt = self._tokenizer.decode(self._renderer.render_ids(question, add_generation_prompt=True))
        full = self._tokenizer.decode(self._renderer.render_ids([*question, message]))
        if not full.startswith(prompt):
            raise UserError(
                f"a scripted message holds reasoning, and the model in {self._tokenizer.name_or_path} answers without: "
                f"leave reasoning_content out of {message!r}"
            )
        # Text, not ids: a merge across the end of the prompt is one that no model could have sampled.
        answer = self._tokenizer.encode(full[len(prompt) :])
        return answer[: next(i for i, t in enumerate(answer) if t in self.stop_token_ids) + 1]

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text; special tokens written out in it are recognised."""
        return self._tokenizer.encode(text)

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Return a conversation as the text that the model reads, special tokens included."""
        ids = self._renderer.render_ids(list(messages), tools=list(tools) or None)
        return self._tokenizer.decode(ids)

    def read(self, prompt_ids: Sequence[int], token_ids: Sequence[int], finish_reason: str) -> Action:
        """Parse what the model wrote. Never raises for anything that it writes."""
        try:
            parsed = self._renderer.parse_response(list(token_ids), prompt_ids=list(prompt_ids))
        except (ValueError, RecursionError, TypeError, KeyError) as error:  # JSON too deep, numbers too long
            return self._unreadable(token_ids, finish_reason, error)
        calls = tuple(_tool_call(i, call) for i, call in enumerate(parsed.tool_calls))
        message: Message = {"role": "assistant", "content": parsed.content or ""}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        if calls:
            message["tool_calls"] = [_as_openai(call) for call in calls]
        return Action(message=message, tool_calls=calls, finish_reason=finish_reason)

    def _unreadable(self, token_ids: Sequence[int], finish_reason: str, error: Exception) -> Action:
        text = self._tokenizer.decode([t for t in token_ids if t not in self.stop_token_ids])
        call = ToolCall(id="call_0", name="", arguments=None, raw=text, error=f"It could not be read: {error}.")
        return Action(message={"role": "assistant", "content": text}, tool_calls=(call,), finish_reason=finish_reason)

    def _defused(self, messages: Sequence[Message]) -> list[Message]:
        """Keep what others wrote from forging turns: a special token spelt out in a message is text, not a token."""
        return [{**m, "content": self._defuse(m["content"])} if m["role"] in ("user", "tool") else m for m in messages]

    def _defuse(self, content: str) -> str:
        text = content.encode("utf-8", "replace").decode()  # lone surrogates have no tokens
        return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _first_prompt(self, messages: list[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Render a first prompt; siblings and repeated tasks share it, so the last few are remembered."""
        key = json.dumps([messages, list(tools)])
        if key not in self._starts:
            if len(self._starts) >= 256:
                self._starts.clear()
            prompt = self._renderer.render_ids(messages, tools=list(tools) or None, add_generation_prompt=True)
            self._starts[key] = list(prompt)
        return list(self._starts[key])


def _last_row(conversation: Conversation) -> list[int]:
    row: list[int] = []
    for turn in conversation.turns:
        if turn.starts_row:
            row = []
        row += turn.prompt_ids
        row += turn.token_ids
    return row


def _tool_call(index: int, parsed: ParsedToolCall) -> ToolCall:
    name = parsed.name if isinstance(parsed.name, str) else ""
    arguments = parsed.arguments if isinstance(parsed.arguments, dict) else None
    if parsed.status is not ToolCallParseStatus.OK or not name or arguments is None:
        why = {
            ToolCallParseStatus.OK: 'A call is a JSON object with a "name" and an object of "arguments".',
        }.get(parsed.status, f"The call could not be read: {parsed.status.value}.")
        return ToolCall(id=f"call_{index}", name=name, arguments=None, raw=parsed.raw, error=why)
    return ToolCall(id=parsed.id or f"call_{index}", name=name, arguments=arguments)


def _as_openai(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments) if call.arguments is not None else call.raw
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
