"""Constraint: the form of an answer that a program asks for, see `AnswerForm`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from contrib.external.answer_grammar import grammar_of
from forge_env.core.errors import PolicyError, TurnRefused
from forge_env.core.turn import Completion
from forge_env.core.types import Action, Sampling, ToolSpec

if TYPE_CHECKING:
    from agents.renderer.rendering import Renderer
    from agents.thought_budget import Ask

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

    def request(self, tools: Sequence[ToolSpec]) -> tuple[Sequence[ToolSpec], dict[str, Any]]:
        """Return the tools that an endpoint gets, and the fields of a request that ask it for the form.

        If the answer must call some of the tools, the endpoint gets only these: the field `tool_choice` names either
        one tool or all.
        """
        if not self.schema or self.tools:  # otherwise they stay in the prompt, and `tool_choice` is none
            tools = [tool for tool in tools if tool["function"]["name"] in self.tools]
        if not self.schema:
            return tools, {"tool_choice": "required"}
        form = {"name": "answer", "schema": json.loads(self.schema)}
        choice = {"tool_choice": "auto" if self.tools else "none"} if tools else {}
        return tools, {"response_format": {"type": "json_schema", "json_schema": form}, **choice}

    async def sample(
        self,
        ask: Ask,
        prompt: np.ndarray,
        sampling: Sampling,
        *,
        renderer: Renderer,
        tools: Sequence[ToolSpec],
        budget: int,
        thinks: bool,
    ) -> tuple[Completion, list[np.ndarray]]:
        """See `AnswerForm.sample`.

        A model that thinks is asked twice: for its thought without the grammar, and then for the answer. So the tokens
        of a thought have the logprobs of the model alone. If the first completion is not a complete thought, it is
        dropped, and the answer is sampled without one. This depends on its tokens alone. So the tokens of a thought
        that is kept were sampled as if nothing else could have come.
        """
        grammar = grammar_of(self, tools, renderer.format.answers, renderer.token_id)
        sampling = replace(sampling, grammar=grammar)
        first = await _thought(ask, prompt, sampling, renderer, budget) if thinks else None
        if first is None:
            answer = await _answer(ask, prompt, sampling, 1 if thinks else 0)
            return answer, [answer.prompt_ids]
        sampled = first.token_ids.tolist()
        is_ended = sampled[-1] == renderer.end_thought
        form = renderer.format.answers
        insertion = tuple(renderer.encode(form.after_thought if is_ended else form.close_thought))
        room = sampling.max_tokens - len(sampled) - len(insertion)
        if room < 1 or not (is_ended or budget):
            return replace(first, finish_reason="length"), [first.prompt_ids]
        rest = await _answer(ask, first.with_inserted(insertion), replace(sampling, max_tokens=room), 1)
        return first.then(insertion, rest), [first.prompt_ids, rest.prompt_ids]

    def check(self, action: Action, writer: str) -> None:
        """Check an answer that was written without a grammar. One that a limit has cut off is not checked."""
        if action.finish_reason != "length" and (wrong := self._wrong(action)):
            raise PolicyError(f"{writer} answered in another form than was asked for: {wrong}")

    def _wrong(self, action: Action) -> str:
        """Why an answer does not have the form, as a clause; "" if it has."""
        if calls := [call.name for call in action.tool_calls]:
            other = [name for name in calls if name not in self.tools]
            rule = f"only {', '.join(self.tools)} may be" if self.tools else "no tool may be"
            return f"it calls {other[0]}, and {rule}" if other else ""
        if not self.schema:
            return f"it calls no tool, and has to call {' or '.join(self.tools)}"
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match

        try:
            value = json.loads(action.text)
            error = best_match(Draft202012Validator(json.loads(self.schema)).iter_errors(value))
        except (ValueError, RecursionError):
            return f"its text {action.text!r:.80} is no JSON"
        except OverflowError:  # `multipleOf` divides by a fraction as a float, which holds no such number
            return "a number in its JSON is too large"
        return f"its JSON does not fit the schema: {error.message:.200}" if error is not None else ""


async def _thought(
    ask: Ask, prompt: np.ndarray, sampling: Sampling, renderer: Renderer, budget: int
) -> Completion | None:
    """Sample a thought with its end, or a thought that a limit has cut; None if the model has not thought."""
    end = renderer.end_thought
    room = min(sampling.max_tokens, budget or sampling.max_tokens)
    stops = (*sampling.stop_token_ids, end)
    first = await ask(prompt, replace(sampling, grammar="", stop=(), max_tokens=room, stop_token_ids=stops), 0)
    ids = first.token_ids.tolist()
    is_whole = ids[-1] == end and renderer.is_in_thought(ids[:-1])
    is_cut = first.finish_reason == "length" and renderer.is_in_thought(ids)
    return first if is_whole or is_cut else None


async def _answer(ask: Ask, prompt: np.ndarray, sampling: Sampling, number: int) -> Completion:
    answer = await ask(prompt, sampling, number)
    if answer.constrained != len(answer.token_ids):
        raise TurnRefused("the policy samples without grammars, so it cannot hold an answer to a form")
    return answer


def wrong_with(schema: Any) -> str:
    """Why a value is not a JSON Schema that an answer can be held to, as a clause; "" if it is one."""
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
