"""What only an agent that samples tokens knows: their logprobs, and the length of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from forge_env.core.episode import Turn
from forge_env.core.errors import EnvError, TemplateError, TurnRefused
from forge_env.core.protocols import Agent, Conversation, NextTurn
from forge_env.core.types import NOT_SAMPLED, ToolSpec

if TYPE_CHECKING:
    from agents.renderer.rendering import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTurn(NextTurn):
    """Requirements of the next turn; two of them are for an agent that samples tokens."""

    logprobs: bool = False
    """Whether `ConcurrentEnv.answer` gets the logprobs of the tokens."""
    count: bool = False
    """Whether the tokens of the prompt are to be counted. Nothing is sampled then, and there is no turn."""


class TokenLogprob(NamedTuple):
    """A sampled token, and the logprob that it was sampled with."""

    text: bytes
    """A token may be a part of a character."""
    logprob: float


def renderer_of(agent: Agent, next_turn: ProgramTurn) -> Renderer:
    """Return the renderer of an agent that samples tokens. Raises TurnRefused for another one."""
    renderer: Renderer | None = getattr(agent, "renderer", None)
    if renderer is None:
        lack = "counts no tokens" if next_turn.count else "gives no logprobs"
        raise TurnRefused(f"{type(agent).__name__} {lack}: use an agent that samples tokens, vllm: or checkpoint:")
    return renderer


def length_of_prompt(renderer: Renderer, conversation: Conversation, tools: Sequence[ToolSpec]) -> int:
    """The number of tokens of the next prompt. Raises EnvError for messages that the template refuses."""
    prompt = conversation.next_turn.prompt if conversation.next_turn is not None else None
    try:
        if prompt is not None:
            row, new = renderer.plain_prompt(conversation, prompt)
        else:
            row, new = renderer.next_prompt(conversation, tools)
    except TemplateError as error:
        raise EnvError(str(error)) from error
    return len(row) + len(new)


def token_logprobs(turn: Turn, renderer: Renderer) -> tuple[TokenLogprob, ...]:
    """The logprobs of the sampled tokens of a turn, without the token that ended it."""
    versions = [version for version, count in turn.versions for _ in range(count)]
    token_ids = turn.token_ids.tolist()
    sampled = [
        TokenLogprob(_bytes_of(renderer.token_text(token)), logprob)
        for token, logprob, version in zip(token_ids, turn.logprobs.tolist(), versions, strict=True)
        if version != NOT_SAMPLED
    ]
    return tuple(sampled[:-1] if token_ids[-1] in renderer.stop_token_ids else sampled)


def _bytes_of(text: str) -> bytes:
    """The bytes of a token's text, which may be a part of a character. The vocabulary is byte-level BPE."""
    if not all(character in _BYTES for character in text):
        return text.encode("utf-8", "replace")
    return bytes([_BYTES[character] for character in text])


def _byte_characters() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes: printable ones of Latin-1 stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()
