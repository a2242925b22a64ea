"""What OpenAI's chat completions and completions have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.dialects.dialect import Dialect, event
from contrib.external.dialects.fields import Fields, check_kind, refuse
from contrib.external.dialects.reading import limit, stops
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply

DONE = b"data: [DONE]\n\n"


_ONE_ANSWER = "a request has one answer; requests that come at once are answered at once, so send it so many times"


def check_body(body: Any, fields: Fields) -> dict[str, Any]:
    """Refuse what is not offered, in all of OpenAI's older APIs."""
    body = fields.check(body)
    refuse(body, "n", body.get("n") not in (None, 1), _ONE_ANSWER)
    return body


def common(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options") or {}
    return {
        "model": str(body.get("model") or ""),
        "max_tokens": limit(body, "max_completion_tokens", "max_tokens"),
        "stop": stops(body.get("stop")),
        "stream": body.get("stream") or False,
        "include_usage": check_kind(options, "include_usage") or False,
    }


def ignored_names(body: Mapping[str, Any], fields: Fields) -> tuple[str, ...]:
    """What is ignored of a request."""
    options = body.get("stream_options") or {}
    return (*fields.ignored_in(body), *(f"stream_options.{name}" for name in options if name != "include_usage"))


class OpenAIFormat(Dialect):
    """Responses with one choice, streams of chunks, and OpenAI's errors."""

    kind: str
    """Of the object that a response is."""

    def error_events(self, refusal: RequestRefused) -> Iterator[bytes]:
        yield event(self.error(refusal))
        yield DONE

    def events(self, reply: ProgramReply, request: ProgramRequest) -> Iterator[bytes]:
        head = self.head(reply, request, is_chunk=True)
        if request.include_usage:
            head["usage"] = None
        for content, finish_reason in self.pieces(reply):
            yield event({**head, "choices": [self.choice(content, finish_reason)]})
        if request.include_usage:
            yield event({**head, "choices": [], "usage": reply.usage})
        yield DONE

    def pieces(self, reply: ProgramReply) -> Iterator[tuple[dict[str, Any], str | None]]:
        """The contents of the chunks, with their finish reasons."""
        raise NotImplementedError

    def head(self, reply: ProgramReply, request: ProgramRequest, *, is_chunk: bool = False) -> dict[str, Any]:
        kind = f"{self.kind}.chunk" if is_chunk and self.kind == "chat.completion" else self.kind
        return {"id": reply.id, "object": kind, "created": reply.created, "model": request.model}

    def choice(self, content: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, **content, "finish_reason": finish_reason}


def token_logprobs(reply: ProgramReply) -> list[dict[str, Any]]:
    """The sampled tokens with their logprobs; no others are known."""
    return [
        {"token": text_of_token(text), "bytes": list(text), "logprob": logprob, "top_logprobs": []}
        for text, logprob in reply.logprobs
    ]


def text_of_token(token: bytes) -> str:
    return token.decode("utf-8", "replace")
