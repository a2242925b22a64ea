"""The conversation format of Qwen2.5, and of Qwen3 without thoughts. The `renderers` library does not have it.

A turn stands between `<|im_start|>` and `<|im_end|>`. Tools are JSON in the system turn. Calls have the form of Hermes.
Results stand in a user turn between `<tool_response>` and `</tool_response>`, which are plain text in this family. The
template never rewrites earlier turns, so every turn can be continued.

Two properties differ between models of the family, and are read from the chat template: the default system message,
which Qwen3 does not have, and whether the example of a call has doubled braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from renderers.base import ParsedResponse, RenderedTokens, reject_assistant_in_extension, trim_to_turn_close

from agents.renderer.dialects import write
from agents.renderer.tokenizer import FastTokenizer
from forge_env.core.errors import UserError
from forge_env.core.types import Message

_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>")
_ANSWER = "<|im_start|>assistant\n"
_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{form}\n</tool_call>"
)
_FORM = '{"name": <function-name>, "arguments": <args-json-object>}'
# Both are in string literals of the template: a line end is written \n there, and a quote may be written \".
_DEFAULT_SYSTEM = re.compile(r"""<\|im_start\|>system\\n([^<'"]+)<\|im_end\|>""")
_DOUBLED_FORM = re.compile(r'\{\{\\?"name\\?": <function-name>')


class Qwen25Renderer:
    """Messages to tokens and back, with the interface of the `renderers` library.

    Args:
        tokenizer: of the model.
        template: the model's chat template, a Jinja source.
        has_default: whether the family has a default system message.

    Raises:
        UserError: the tokenizer lacks a token of the family, or the template the default system message.
    """

    def __init__(self, tokenizer: FastTokenizer, template: str, *, has_default: bool = True) -> None:
        self._tokenizer = tokenizer
        where = tokenizer.name_or_path
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _TOKENS}
        missing = [token for token, i in ids.items() if i is None]
        if missing:
            raise UserError(f"the tokenizer in {where} is not of the model's family: it has no token {missing[0]}")
        default = _DEFAULT_SYSTEM.search(template) if has_default else None
        if default is None and has_default:
            raise UserError(
                f"the chat template in {where} is not Qwen2.5's: it has no default system message, "
                "which stands there as '<|im_start|>system\\nTEXT<|im_end|>'"
            )
        self._default_system = default[1].replace(r"\n", "\n").replace("\\\\", "\\") if default else None
        self._form = f"{{{_FORM}}}" if _DOUBLED_FORM.search(template) else _FORM
        self._stops = [ids["<|im_end|>"], ids["<|endoftext|>"]]

    def get_stop_token_ids(self) -> list[int]:
        """Tokens that end a turn, `<|im_end|>` first."""
        return list(self._stops)

    def render_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The tokens of a conversation.

        Raises:
            ValueError: the template cannot render it.
        """
        if not messages:
            raise ValueError("it has no messages")
        parts = [self._system(messages[0], tools or ())]
        parts += _turns(messages[1:] if messages[0]["role"] == "system" else messages)
        if add_generation_prompt:
            parts.append(_ANSWER)
        return self._encode(parts)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """Continue the sampled tokens with new messages; None if there are none, or one is an assistant's.

        A truncated turn is closed. Tokens after the end of a turn are dropped.
        """
        if not new_messages or reject_assistant_in_extension(list(new_messages)):
            return None
        row = trim_to_turn_close(
            list(previous_prompt_ids), list(previous_completion_ids), set(self._stops), synthesize_close=self._stops[0]
        )
        # The template adds the line end after a turn: a model stops before it.
        return RenderedTokens(token_ids=[*row, *self._encode(["\n", *_turns(new_messages), _ANSWER])])

    def parse_response(self, token_ids: Sequence[int]) -> ParsedResponse:
        """The text before the end of the turn. Calls stay in the content, in the dialect "hermes"."""
        end = next((i for i, token in enumerate(token_ids) if token in self._stops), len(token_ids))
        return ParsedResponse(content=self._tokenizer.decode(list(token_ids[:end])).strip())

    def _system(self, first: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
        system = first["content"] if first["role"] == "system" else self._default_system
        if tools:
            listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
            system = ("" if system is None else f"{system}\n\n") + _TOOLS.format(tools=listed, form=self._form)
        return "" if system is None else _turn("system", system)

    def _encode(self, parts: Sequence[str]) -> list[int]:
        return self._tokenizer.encode("".join(parts))


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    results: list[str] = []
    for number, message in enumerate(messages, 1):
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            results.append(f"<tool_response>\n{content}\n</tool_response>")
            if number == len(messages) or messages[number]["role"] != "tool":
                yield _turn("user", "\n".join(results))
                results = []
        elif role == "assistant":
            if message.get("reasoning_content"):
                raise ValueError("Qwen2.5 writes no reasoning_content")
            yield _ANSWER
            yield f"{write(cast(Message, message), 'hermes')}<|im_end|>\n"
        elif role in ("user", "system"):
            yield _turn(role, content)
        else:
            raise ValueError(f"there is no role {role!r}")


def _turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"
