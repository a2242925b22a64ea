"""What a dialect is: how a program's request is read, and how its response, stream and errors are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from contrib.common.http_server import RequestRefused
from contrib.common.json_text import write
from contrib.external.dialects.fields import Fields
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from forge_env.core.types import Message

Histories = Mapping[str, tuple[Message, ...]]
"""The conversations of a session up to a response, by the id of the response."""


class Dialect(ABC):
    """One API that programs speak, at one path."""

    path: ClassVar[str]
    fields: ClassVar[Fields]

    versions: ClassVar[Mapping[bytes, tuple[bytes, ...]]] = {}
    """The values that a header may have, by the header's name."""

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        for name, versions in self.versions.items():
            if (version := headers.get(name, versions[0])) not in versions:
                label, names = version.decode("latin-1"), " or ".join(value.decode() for value in versions)
                text = f"{name.decode()} is {label!r:.60}, and answers are those of {names}: send that, or leave it out"
                raise RequestRefused(400, text, code="unsupported_version")

    @abstractmethod
    def read(self, body: Any, histories: Histories) -> ProgramRequest:
        """Read the JSON body of a request."""

    @abstractmethod
    def body(self, reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
        """The whole response as one object."""

    @abstractmethod
    def events(self, reply: ProgramReply, request: ProgramRequest) -> Iterator[bytes]:
        """The response in pieces, for a stream of server-sent events."""

    def error(self, refusal: RequestRefused) -> dict[str, Any]:
        """The body of a refusal, here in OpenAI's form."""
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        return {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}}

    @abstractmethod
    def error_events(self, refusal: RequestRefused) -> Iterator[bytes]:
        """A refusal in a stream that has begun."""

    def name_of(self, reply: ProgramReply) -> str:
        """The id with which a later request may name the response; "" if the dialect has none."""
        return ""


def dump(value: Any) -> bytes:
    return write(value).encode()  # in ASCII: a model may write surrogates, which UTF-8 cannot carry


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + dump(data) + b"\n\n"
