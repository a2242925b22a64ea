"""What a client says of a request, beside its messages: which agent sends it, for which other one, and whether it is
part of the work.

A field names a place in a request: a header or a key of the body, with the keys below it after dots, also within text
that is JSON (`x-codex-turn-metadata.thread_id`). `system` is the text of the first message, if that is the system's,
`user` the text of the last user message. Observed in Claude Code 2.1.332, Codex 0.171.0, Qwen Code 0.24.4 and opencode
1.18.33.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.types import Message
from forge_env.utils.patterns import linear_pattern


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
    """Why the request is no part of the work; "" for a part of it."""


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


_CLAUDE_CODE = Field("x-claude-code-session-id", ".")
_OPENCODE = Field("user-agent", "^opencode/")
_QWEN_CODE = Field("user-agent", "^QwenCode/")
_MEMORY = "^You are now acting as the managed memory extraction subagent"
RULES = (
    Rule(Field("x-claude-code-request-class", "^compaction$"), "a summary"),
    Rule(Field("x-claude-code-request-class", "^(auxiliary|side_reply)$"), "a helper of Claude Code"),
    Rule(Field("x-claude-code-auxiliary-type", "."), "a helper of Claude Code"),
    Rule(Field("output_config.format.schema.required", r'^\["title"\]$'), "a title", _CLAUDE_CODE),
    Rule(Field("user", "^quota$"), "a probe of the quota", _CLAUDE_CODE),
    Rule(Field("x-codex-turn-metadata.request_kind", "^compaction$"), "a summary"),
    Rule(Field("x-codex-turn-metadata.request_kind", "^(prewarm|memory)"), "a helper of Codex"),
    Rule(Field("x-openai-subagent", "^(compact|memory)"), "a helper of Codex"),
    Rule(Field("system", "^You are a title generator"), "a title", _OPENCODE),
    Rule(Field("system", _MEMORY), "a memory agent", _QWEN_CODE),
    Rule(Field("user", _MEMORY), "a memory agent", _QWEN_CODE),
)
"""What is auxiliary by itself. A text counts only for the client that sends it: for others it may be the work."""
_AGENTS = (
    ("x-claude-code-agent-id", ("x-claude-code-parent-agent-id", "x-claude-code-session-id")),
    ("x-claude-code-session-id", ()),
    ("x-codex-turn-metadata.thread_id", ("x-codex-turn-metadata.parent_thread_id", "x-codex-parent-thread-id")),
    ("x-session-id", ("x-parent-session-id",)),
    ("metadata.session_id", ("metadata.parent_session_id",)),
    ("metadata.user_id.session_id", ()),
)
"""Fields that name the agent, and for each those that name the agent that it works for; the first one counts."""


def read_rules(text: str) -> tuple[Rule, ...]:
    """Read the rules of a user, one a line: `FIELD: PATTERN`, or `!FIELD: PATTERN` for requests that are not auxiliary.

    Args:
        text: a pattern is a regular expression of `forge_env.utils.patterns`, which may match anywhere in the field.
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
    agent_field, parents = next(((name, more) for name, more in _AGENTS if fields.text(name)), ("", ()))
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
