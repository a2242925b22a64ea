"""Reads TrainingTraces of OpenEnv, version 1: calls of a model with their token ids, logprobs and loss masks.

What `contrib.records.exports.training_trace` has written comes back as it was. Other programs say nothing of rows and
weight versions: if the prompt of a call does not go on from the tokens before it, the call starts a row, and the
version is 0. A token that no loss is over counts as inserted by the agent, so no loss is over it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from contrib.records.exports.conversation import OURS
from contrib.records.exports.training_trace import VERSION
from contrib.records.imports.build import BadRecord, Log, Rows, check_ids, check_logprobs, kept_of, mapping
from contrib.records.imports.openai import check_ending, read_message, read_tools
from forge_env.core.turn import digest
from forge_env.core.types import NOT_SAMPLED, Message

SOURCE = f"OpenEnv TrainingTrace v{VERSION}"
_LISTS = ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask")
_OBJECTS = ("request", "response", "metadata")
_SAME = ("reward", "policy_seconds", "env_seconds", "tool_uses", "usage", "auxiliary", "is_summary")
"""What `metadata.forge_env` says of a turn, as `Log.turns` does."""


def is_trace(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("turns"), list) and record.keys() <= {"schema_version", "turns"}


def read_trace(record: Mapping[str, Any]) -> Log:
    version = record.get("schema_version", VERSION)
    if type(version) is not int or version != VERSION:
        raise BadRecord(f"its schema_version is {version!r}; forge_env reads {VERSION}")
    if not is_trace(record):
        raise BadRecord("a TrainingTrace has a list of turns, and no other key than schema_version")
    reader = _Reader()
    ids: set[str] = set()
    for number, call in enumerate(record["turns"], 1):
        try:
            _check(call)
            if call["node_id"] in ids:
                raise BadRecord(f"the node_id {call['node_id']!r} is there twice")
            ids.add(call["node_id"])
            reader.read(call)
        except BadRecord as error:
            raise BadRecord(f"turn {number}: {error}") from None
    if "lineage" not in reader.log.about:
        reader.log.about = {**reader.log.about, "lineage": reader.graph}
    tail = reader.log.about.get("tail")
    for item in tail if isinstance(tail, list) else ():
        reader.log.messages.append((read_message(item)[0], False))
    return reader.log


def _check(call: Any) -> None:
    if not isinstance(call, Mapping):
        raise BadRecord(f"it is a {type(call).__name__}, not an object")
    if unknown := sorted(call.keys() - {"node_id", *_LISTS, *_OBJECTS}):
        raise BadRecord(f"it has the unknown key {unknown[0]!r}")
    if not isinstance(call.get("node_id"), str) or not call["node_id"]:
        raise BadRecord("it has no node_id, which is a text")
    for name in _LISTS:
        if not isinstance(call.get(name), list):
            raise BadRecord(f"its {name} is no list")
    for name in _OBJECTS:
        if not isinstance(call.get(name, {}), Mapping):
            raise BadRecord(f"its {name} is no object")
    prompt, tokens, logprobs, mask = (call[name] for name in _LISTS)
    if not prompt:
        raise BadRecord("it has no prompt_token_ids")
    check_ids(prompt, tokens)
    check_logprobs(logprobs, tokens, most=0.0)
    if len(mask) != len(prompt) + len(tokens) or not all(type(bit) is int and bit in (0, 1) for bit in mask):
        raise BadRecord("its loss_mask is not one 0 or 1 for each token of the prompt and the completion")
    if any(mask[: len(prompt)]):
        raise BadRecord("its loss_mask is over tokens of the prompt")


class _Reader:
    def __init__(self) -> None:
        self.log = Log(source=SOURCE)
        self._rows = Rows()
        self._history: list[Message] = []
        """The conversation so far."""
        self._turns: dict[str, int] = {}
        """The numbers of the turns by their node ids."""
        self.graph: list[dict[str, Any]] = []
        """The nodes' facts about the rows, as in `Lineage`; empty if they say nothing."""

    def read(self, call: Mapping[str, Any]) -> None:
        log = self.log
        request, response = call.get("request", {}), call.get("response", {})
        own = mapping(mapping(call.get("metadata")).get(OURS))
        if isinstance(own.get("episode"), Mapping):
            log.about = own["episode"]
        log.tools = log.tools or read_tools(request.get("tools"))
        if isinstance(model := response.get("model"), str):
            log.model = model
        answer, finish_reason = self._answer(response)
        messages = self._messages_of(request)
        prompt, tokens = call["prompt_token_ids"], call["completion_token_ids"]
        if not tokens:  # the model was cut off before its first token: what it is shown later
            log.missing.add("calls without a sampled token")
            log.messages += [(message, False) for message in (*self._new(messages, own, goes_on=False), answer)]
            self._history = [*messages, answer]
            return
        place = self._rows.place(prompt, tokens, own.get("starts_row"))
        new = self._new(messages, own, goes_on=not place["starts_row"])
        log.messages += [(message, False) for message in new]
        log.messages.append((answer, True))
        facts = {name: own[name] for name in _SAME if name in own}
        fields = {**self._tokens(call, own), **place}
        if place["starts_row"]:
            self._note_row(mapping(call.get("metadata")))
        self._turns[call["node_id"]] = len(log.turns)
        log.turns.append({**facts, "finish_reason": finish_reason, "tokens": fields})
        self._history = [*messages, answer]

    def _note_row(self, metadata: Mapping[str, Any]) -> None:
        parent, agent = self._turns.get(str(metadata.get("parent_id"))), metadata.get("harness_session_id")
        if parent is None and not isinstance(agent, str):
            return
        row = {"turn": len(self.log.turns), "agent": agent if isinstance(agent, str) else ""}
        origin = {"parent": parent, "known_by": "metadata.parent_id"} if parent is not None else {}
        self.graph.append({**row, **origin, "kind": "imported" if self._turns else ""})

    def _tokens(self, call: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a sampled Turn, but for its place in its row."""
        prompt, tokens, logprobs = (call[name] for name in _LISTS[:3])
        mask = call["loss_mask"][len(prompt) :]
        if not own:
            self.log.unversioned = True
            if any(p and not is_learned for p, is_learned in zip(logprobs, mask, strict=True)):
                self.log.missing.add("logprobs of tokens that no loss is over")
            spans = [(bit - 1, len(list(group))) for bit, group in groupby(mask)]  # 0, or NOT_SAMPLED, which is -1
            return {
                "logprobs": tuple(float(p) if bit else 0.0 for p, bit in zip(logprobs, mask, strict=True)),
                "versions": tuple(spans),
                "context_digest": " ".join(digest([*prompt, *tokens[:start]]) for start in _requests(spans)),
            }
        fields = kept_of(own)
        try:
            exact = tuple(map(float, own.get("logprobs", logprobs)))
        except (TypeError, ValueError) as error:
            raise BadRecord(f"what forge_env has kept of it is broken ({type(error).__name__}: {error})") from None
        is_exact = [min(p, 0.0) for p in exact] == logprobs
        fields["logprobs"] = exact if is_exact else tuple(map(float, logprobs))
        versions, num_constrained = fields["versions"], fields["constrained"]
        if own.get("auxiliary"):
            num_constrained = len(tokens)  # no loss is over any of them
        own_mask = [int(version != NOT_SAMPLED) for version, count in versions for _ in range(min(count, len(tokens)))]
        if [*own_mask[: len(tokens) - num_constrained], *[0] * num_constrained] != mask:
            raise BadRecord("its loss_mask is another than its metadata.forge_env says: leave that out to use the mask")
        return fields

    def _messages_of(self, request: Mapping[str, Any]) -> list[Message]:
        items = request.get("messages", [])
        if not isinstance(items, list):
            raise BadRecord("the messages of its request are no list")
        if not items:
            self.log.missing.add("messages, as some calls do not hold them")
        return [read_message(item)[0] for item in items]

    def _answer(self, response: Mapping[str, Any]) -> tuple[Message, str]:
        choices = response.get("choices") or [{}]
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
            raise BadRecord("its response is not one with one choice")
        if "message" not in choices[0]:
            self.log.missing.add("messages, as some calls do not hold them")
            return {"role": "assistant", "content": ""}, "stop"
        check_ending(response, choices[0])
        message = read_message(choices[0]["message"])[0]
        if message["role"] != "assistant":
            raise BadRecord(f"the role of its answer is {message['role']!r}")
        return message, str(choices[0].get("finish_reason") or "stop")

    def _new(self, messages: Sequence[Message], own: Mapping[str, Any], *, goes_on: bool) -> Sequence[Message]:
        """The messages of a request that the environment has added.

        If its tokens go on from those before, so do the messages, however they are written.
        """
        texts = own.get("shown")
        if type(texts) is int and 0 <= texts <= len(messages):
            return messages[len(messages) - texts :]
        length = len(self._history)
        return messages[length:] if goes_on or list(messages[:length]) == self._history else messages


def _requests(spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Where in the tokens of a turn generation began, or went on after tokens that were inserted."""
    end = 0
    yield end
    for version, count in spans[:-1]:
        end += count
        if version == NOT_SAMPLED:
            yield end
