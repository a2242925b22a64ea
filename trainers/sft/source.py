"""Reads the rows of `--sft.data` one by one: Episodes, or the chats of a file or of a dataset of the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forge_env.core.episode import Episode
from forge_env.core.errors import InvariantError, UserError
from forge_env.core.reward_value import reaches
from forge_env.data.rows import BadRow, Data, open_data
from forge_env.records.run_files import imported_facts
from trainers.sft.shapes import Example, find_shape, tools_of

if TYPE_CHECKING:
    from trainers.sft.config import SFTConfig


class Source:
    """The conversations of one dataset, with their places: "line 7" or "row 7". It can be iterated over repeatedly."""

    def __init__(self, data: Data, config: SFTConfig) -> None:
        """Raises: UserError if no row can be read, or the columns have no known shape."""
        self._data, self.name = data, data.name
        first = next((row.values for row in data if not isinstance(row.values, BadRow)), None)
        if first is None:
            row = next(iter(data), None)
            detail = f"{row.where}: {row.values}" if row else "it is empty"
            raise UserError(f"{data.file or data.name} holds no row that can be read; {detail}")
        if {"schema_version", "turns", "outcome"} <= first.keys():
            self.about = "Episodes"
            self._example: Callable[[Mapping[str, Any]], Example] = lambda row: _episode(row, config.min_reward)
        else:
            shape = find_shape(first.keys(), source=config.data, messages_field=config.messages_field)
            self.about = f"chats in {shape.columns}"
            self._example = shape.read

    def __iter__(self) -> Iterator[tuple[str, Example | BadRow]]:
        for row in self._data:
            try:
                values = row.read()
                yield row.where, self._example(_without_nulls(values) if self._data.is_table else values)
            except BadRow as bad:
                yield row.where, bad


def open_source(config: SFTConfig) -> Source:
    """Open a file, or a dataset of the hub: "owner/name" or "owner/name:configuration"."""
    return Source(open_data(config.data, split=config.split, streaming=config.streaming), config)


def _without_nulls(value: Any) -> Any:
    """Leave out keys that a table has for this row only because other rows have them: its columns are all rows'
    keys."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _episode(row: Mapping[str, Any], min_reward: float) -> Example:
    try:
        episode = Episode.from_json(row)
    except (UserError, InvariantError) as error:
        raise BadRow(str(error)) from None
    if episode.reward is None:
        raise BadRow(f"it has no reward, as its outcome is {episode.outcome}")
    if not reaches(episode.reward, min_reward):
        raise BadRow(f"its reward is below {min_reward:g} (--sft.min_reward)")
    if not episode.turns:
        raise BadRow(f"it has no turn, as its outcome is {episode.outcome}")
    context = _context(episode)
    if len(context) == sum(message["role"] == "assistant" for message in episode.messages):
        raise BadRow("it has no assistant message to learn from: no loss is over any token of its turns")
    has_tokens = all(turn.kind != "text" for turn in episode.turns)
    tools = tools_of(imported_facts(episode))  # an imported Episode contains its tools
    return Example(
        messages=tuple(episode.messages),
        tools=tools,
        context=context,
        rows=tuple(episode.supervised_rows) if has_tokens else (),
        env=episode.env,
        task=episode.task.id,
    )


def _context(episode: Episode) -> frozenset[int]:
    """The places of assistant messages without a loss, or in the history that the environment showed."""
    read_only: list[bool] = []
    for turn in episode.turns:
        read_only += [message["role"] == "assistant" for message in turn.observation]
        read_only.append(bool(turn.auxiliary) or (turn.kind == "sampled" and not turn.num_written))
    read_only += [message["role"] == "assistant" for message in episode.tail]
    return frozenset(place for place, is_read_only in enumerate(read_only) if is_read_only)
