"""What a client says of a request, beside its messages: which agent sends it, for which other one, and whether it is
part of the work.

A field names a place in a request: a header or a key of the body, with the keys below it after dots, also within text
that is JSON (`x-codex-turn-metadata.thread_id`). `system` is the text of the first message, if that is the system's,
`user` the text of the last user message. The fields of clients that are known are in clients.toml.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.common.patterns import linear_pattern
from forge_env.core.errors import UserError
from forge_env.core.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client has said of a request."""

    agent: str = ""
    """Its name for the agent, thread or session that asks; "" if it gives none."""
    agent_field: str = ""
    """Where it says so."""
    parent: str = ""
    """Its name for the agent that this one works for; "" if it gives none."""
    parent_field: str = ""
    """Where it says so."""
    auxiliary: str = ""
    """Why the request is not part of the work; "" for a part of it."""


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a request, and a regular expression that may match anywhere in its text."""

    name: str
    pattern: str

    def __post_init__(self) -> None:
        linear_pattern(self.pattern)

    def matches(self, fields: _Fields) -> bool:
        return linear_pattern(self.pattern)(fields.text(self.name))


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests with a field that matches are auxiliary, or, with `is_work`, they are not."""

    field: Field
    what: str = ""
    """What such a request is for."""
    client: Field | None = None
    """The rule counts only for requests of this client; None for those of all."""
    is_work: bool = False

    def matches(self, fields: _Fields) -> bool:
        return self.field.matches(fields) and (self.client is None or self.client.matches(fields))

    @property
    def reason(self) -> str:
        return ": ".join(filter(None, [self.what, f"{self.field.name} matches {self.field.pattern!r}"]))


_CLIENTS = tomllib.loads(Path(__file__).with_name("clients.toml").read_text(encoding="utf-8"))
RULES = tuple(
    Rule(Field(*row["field"]), row["what"], Field(*row["client"]) if "client" in row else None)
    for row in _CLIENTS["rules"]
)
"""What is auxiliary by itself."""


def read_rules(text: str) -> tuple[Rule, ...]:
    """Read the rules of a user, one a line: `FIELD: PATTERN`, or `!FIELD: PATTERN` for requests that are not auxiliary.

    Args:
        text: a pattern is a regular expression of `contrib.common.patterns`, which may match anywhere in the field.
    """
    rules = []
    for line in filter(None, map(str.strip, text.splitlines())):
        field, colon, pattern = (part.strip() for part in line.removeprefix("!").partition(":"))
        if not (field and colon and pattern):
            raise UserError(f"auxiliary is {line!r}; a rule is FIELD: PATTERN, 'system: ^You write titles' for example")
        try:
            rules.append(Rule(Field(field, pattern), is_work=line.startswith("!")))
        except ValueError as error:
            raise UserError(f"auxiliary has the pattern {pattern!r}, which cannot be used: {error}") from None
    return tuple(rules)


def told(headers: Mapping[bytes, bytes], body: Any, messages: Sequence[Message], rules: Sequence[Rule] = RULES) -> Told:
    """Return what a client says of a request.

    Args:
        headers: of the request, with names in small letters.
        body: as the client has sent it.
        messages: the same in the neutral form.
        rules: the first one that matches decides whether the request is auxiliary.
    """
    fields = _Fields(headers, body, messages)
    agent_field, parents = next(
        ((name, more) for name, more in _CLIENTS["agents"].items() if fields.text(name)), ("", ())
    )
    agent = fields.text(agent_field)
    parent_field = next((name for name in parents if fields.text(name) not in ("", agent)), "")
    rule = next((rule for rule in rules if rule.matches(fields)), None)
    return Told(
        agent=agent,
        agent_field=agent_field,
        parent=fields.text(parent_field),
        parent_field=parent_field,
        auxiliary="" if rule is None or rule.is_work else rule.reason,
    )


class _Fields:
    """The fields of one request as text."""

    def __init__(self, headers: Mapping[bytes, bytes], body: Any, messages: Sequence[Message]) -> None:
        self._headers = headers
        self._body = body if isinstance(body, dict) else {}
        self._messages = messages

    def text(self, field: str) -> str:
        """The text of a field; "" if there is none."""
        if field == "system":
            return next((m["content"] or "" for m in self._messages[:1] if m["role"] == "system"), "")
        if field == "user":
            return next((m["content"] or "" for m in reversed(self._messages) if m["role"] == "user"), "")
        name, *keys = field.split(".")
        header = self._headers.get(name.lower().encode())
        value: Any = self._body.get(name) if header is None else header.decode("latin-1")
        for key in keys:
            value = _object(value).get(key)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
