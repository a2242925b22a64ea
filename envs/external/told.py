"""Facts about a request that its client tells beside its messages: the agent that sends it, the agent that it is for,
and whether it is part of the work.

A field names a place in a request: a header or a key of the body, with the keys below it after dots, also within text
that is JSON (`x-codex-turn-metadata.thread_id`). `system` is the text of the first message, if that is the system's,
`user` the text of the last user message. Observed in Claude Code 2.1.332, Codex 0.171.0, Qwen Code 0.24.4 and opencode
1.18.33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client has said of a request."""

    agent: str = ""
    """Its name for the agent, thread or session that asks; "" if it gives none."""
    agent_field: str = ""
    """The fields that tell it."""
    parent: str = ""
    """Its name for the agent that this one works for; "" if it gives none."""
    parent_field: str = ""
    """The fields that tell it."""
    auxiliary: str = ""
    """Why the request is no part of the work; "" for a part of it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """If their field matches a pattern, requests are auxiliary, or, with `is_work`, they are not."""

    field: str
    pattern: str
    what: str = ""
    """What such a request is for."""
    is_work: bool = False

    @property
    def reason(self) -> str:
        return ": ".join(filter(None, [self.what, f"{self.field} matches {self.pattern!r}"]))


RULES = (
    Rule("x-claude-code-request-class", "^compaction$", "a summary"),
    Rule("x-claude-code-request-class", "^(auxiliary|side_reply)$", "a helper of Claude Code"),
    Rule("x-claude-code-auxiliary-type", ".", "a helper of Claude Code"),
    Rule("output_config.format.schema.required", r'^\["title"\]$', "a title"),
    Rule("user", "^quota$", "a probe of the quota"),
    Rule("x-codex-turn-metadata.request_kind", "^compaction$", "a summary"),
    Rule("x-codex-turn-metadata.request_kind", "^(prewarm|memory)", "a helper of Codex"),
    Rule("x-openai-subagent", "^(compact|memory)", "a helper of Codex"),
    Rule("system", "^You are a title generator", "a title"),
    Rule("system", "^You are now acting as the managed memory extraction subagent", "a memory agent"),
    Rule("user", "^You are now acting as the managed memory extraction subagent", "a memory agent"),
)
"""What is auxiliary by itself."""
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
        text: a pattern is a regular expression, which may match anywhere in the field.

    Raises:
        UserError: for a line of another form, or a pattern that is none.
    """
    rules = []
    for line in filter(None, map(str.strip, text.splitlines())):
        field, colon, pattern = (part.strip() for part in line.removeprefix("!").partition(":"))
        if not (field and colon and pattern):
            raise UserError(f"auxiliary is {line!r}; a rule is FIELD: PATTERN, 'system: ^You write titles' for example")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"auxiliary has the pattern {pattern!r}, which is no regular expression: {error}") from None
        rules.append(Rule(field, pattern, is_work=line.startswith("!")))
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
    rule = next((rule for rule in rules if re.search(rule.pattern, fields.text(rule.field))), None)
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
