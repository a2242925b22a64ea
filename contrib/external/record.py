"""What the episode records of its player: its output, its refused requests, and what ended it."""

from __future__ import annotations

from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.gateway import Gateway
from contrib.external.player import Player
from contrib.external.session import ProgramSession
from forge_env.core.types import EpisodeLimits


class PlayerRecord:
    """What the episode records of its player, also after its end and after the close of its environment."""

    def __init__(self, player: Player, session: ProgramSession, gateway: Gateway) -> None:
        self.note = ""
        """What ended the episode, where the player did not end by itself."""
        self._player = player
        self._session = session
        self._gateway = gateway
        self._unknown_before = gateway.unknown_requests

    @property
    def silence(self) -> str:
        return "was answered nothing" if self._session.refusals.counts else "asked the model nothing"

    def info(self) -> dict[str, Any]:
        facts = self._player.facts()
        if self.note:
            facts["note"] = self.note
        info: dict[str, Any] = {self._player.kind: facts}
        if without_effect := self._session.ignored:
            info["ignored_fields"] = dict(without_effect)
        if media := self._session.media:
            info["media"] = dict(media)
        if (refusals := self._session.refusals).counts:
            facts["refused"] = refusals.sentences
            info["refused_requests"] = dict(refusals.counts)
        return info

    def failure_details(self) -> str:
        """The end of a sentence about a failure: the refused requests, and the last lines that the player wrote."""
        unknown = self._gateway.unknown_requests - self._unknown_before
        parts = [str(self._session.refusals)]
        if unknown and not self._session.count:
            parts.append(
                f"{unknown} {'request' if unknown == 1 else 'requests'} without the key of a running program came "
                "to the gateway meanwhile: a program's key is its OPENAI_API_KEY"
            )
        lines = self._player.last_lines()
        parts.append(f"it wrote: {lines}" if lines else "")
        return "".join(f"; {part}" for part in parts if part)


def ended_by(limit: str, limits: EpisodeLimits, reason: str = "") -> str:
    """Say which limit has ended an episode, with the agent's reason if that is another number than the limit's."""
    value = f"{getattr(limits, limit):g}"
    return f"the episode was ended by {limit} ({reason if reason and value not in reason.split() else value})"


def too_long(reason: str) -> RequestRefused:
    """The refusal of a prompt that leaves no room for a response, in OpenAI's words, which clients look for."""
    return RequestRefused(
        400,
        f"This model's maximum context length is exceeded: {reason}. Please reduce the length of the messages.",
        code="context_length_exceeded",
        param="messages",
    )
