"""Constraint: the form of an answer that an environment asks for, and that the agent's decoding enforces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_SCHEMA = 65_536
"""Characters of a schema, as JSON: a larger one would take the engine seconds to compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The form of one answer: JSON that a schema describes, a tool call, or one of the two.

    Example: ``Constraint(schema='{"type": "object"}')``, ``Constraint(tools=("add",))``
    """

    schema: str = ""
    """JSON Schema of the answer's text, as JSON; "" allows no text, so that a tool has to be called."""
    tools: tuple[str, ...] = ()
    """Names of the tools that may be called; () allows no call."""

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any], tools: tuple[str, ...] = ()) -> Constraint:
        """Make one from a JSON Schema, for an answer that may also be a call of one of some tools.

        Raises:
            ValueError: it says what is wrong with the schema.
        """
        if problem := wrong_with(schema):
            raise ValueError(problem)
        return cls(schema=json.dumps(schema), tools=tools)

    @property
    def label(self) -> str:
        """What a turn records of it: the form, and a digest. Example: "json 0f3a55c2e1b47d90"."""
        form = " or ".join(["json"] * bool(self.schema) + ["call"] * bool(self.tools))
        content = json.dumps([self.schema, self.tools])
        return f"{form} {hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"

    @property
    def record(self) -> dict[str, Any]:
        """The whole of it, for the info of an Episode."""
        parts: dict[str, Any] = {"schema": json.loads(self.schema)} if self.schema else {}
        return parts | ({"tools": list(self.tools)} if self.tools else {})


def wrong_with(schema: Any) -> str:
    """Why a value is no JSON Schema that an answer can be held to, as a clause; "" if it is one."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping):
        return f"it is {json.dumps(schema)[:60]} and no JSON object"
    try:
        if (size := len(json.dumps(schema))) > MOST_SCHEMA:
            return f"it has {size} characters, and {MOST_SCHEMA} is all that a schema may have"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        return f"{error.message[:200]}{f', at {where}' if where else ''}"
    except RecursionError:
        return "it is nested too deep"
    return ""


def wrong_answer(constraint: Constraint, text: str, calls: tuple[str, ...]) -> str:
    """Why an answer does not have the form of a constraint, as a clause; "" if it has.

    For agents without enforced decoding: a script, an endpoint.

    Args:
        constraint: the form.
        text: of the answer.
        calls: names of the tools that it calls.
    """
    if calls:
        other = [name for name in calls if name not in constraint.tools]
        allowed = f"only {', '.join(constraint.tools)} may be" if constraint.tools else "no tool may be"
        return f"it calls {other[0]}, and {allowed}" if other else ""
    if not constraint.schema:
        return f"it calls no tool, and has to call {' or '.join(constraint.tools)}"
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    try:
        value = json.loads(text)
        error = best_match(Draft202012Validator(json.loads(constraint.schema)).iter_errors(value))
    except (ValueError, RecursionError):
        return f"its text {text!r:.80} is no JSON"
    except OverflowError:  # `multipleOf` divides by a fraction as a float, which holds no such number
        return "a number in its JSON is too large"
    return f"its JSON does not fit the schema: {error.message:.200}" if error is not None else ""
