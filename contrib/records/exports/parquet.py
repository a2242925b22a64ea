"""Episodes as a Hugging Face dataset: parquet files with one row for each episode, and a card.

Memory is bounded: a row group is written when it has enough rows or bytes, and a file ends when it is large.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contrib.common.json_text import portable
from contrib.records.exports.conversation import conversations, outcome_of, with_weight
from contrib.records.exports.select import Selected
from forge_env.core.errors import UserError

GROUP_ROWS, GROUP_BYTES = 512, 16 << 20
"""Size of a row group, which is in memory while it is filled; bytes are counted of the rows as JSON."""
FILE_BYTES = 256 << 20
"""Size of a file, about."""
_TOKENS = ("token_ids", "loss_mask", "logprobs", "versions")

_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
---
# Episodes

One row is one episode of a language-model agent in an environment, exported by forge_env. `reward` is null where the
machinery failed; `outcome` says how the episode ended. `tools`, `target`, `metadata`, `info` and `lineage`, which says
where each row of an episode with several comes from, are JSON as text.
`token_ids`, `loss_mask`, `logprobs` and `versions` have an entry for each row of tokens that a trainer reads.
"""


class ParquetWriter:
    """Writes `data/train-NNNNN.parquet` and the card into a new folder, which it creates."""

    def __init__(self, folder: Path, *, tokens: bool, file_bytes: int = FILE_BYTES) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise UserError("--to hf writes parquet by the package pyarrow: pip install 'forge-env[data]'") from None
        self._arrow: Any = pyarrow
        self._parquet: Any = pyarrow.parquet
        self._data, self._tokens, self._file_bytes = folder / "data", tokens, file_bytes
        self._data.mkdir(parents=True)
        (folder / "README.md").write_text(_CARD, encoding="utf-8")
        self._schema = self._arrow.schema(_columns(self._arrow, tokens))
        self._rows: list[dict[str, Any]] = []
        self._bytes = self._files = 0
        self._file: Any = None
        self._writer: Any = None
        self.replaced = 0
        """Episodes with text that is not valid Unicode, which was replaced."""

    def close(self) -> None:
        """Write what is left, and end the last file; without any episode it has no rows."""
        self._write_group()
        if not self._files:
            self._open()
        self.abandon()

    def abandon(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._file is not None:
                self._file.close()
            self._file = self._writer = None

    def add(self, selected: Selected, *, model: str | None, tools: Sequence[Any]) -> None:
        row = _row(selected, model, tools, self._tokens)
        self._rows.append(row)
        self._bytes += len(json.dumps(row, default=str))
        if len(self._rows) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if not self._rows:
            return
        try:
            table = self._arrow.Table.from_pylist(self._rows, schema=self._schema)
        except UnicodeEncodeError:
            rows = [portable(row) for row in self._rows]
            self.replaced += sum(before != after for before, after in zip(self._rows, rows, strict=True))
            table = self._arrow.Table.from_pylist(rows, schema=self._schema)
        if self._writer is None:
            self._open()
        self._writer.write_table(table)
        self._rows, self._bytes = [], 0
        if self._file.tell() >= self._file_bytes:
            self.abandon()

    def _open(self) -> None:
        self._file = (self._data / f"train-{self._files:05d}.parquet").open("wb")
        self._writer = self._parquet.ParquetWriter(self._file, self._schema, compression="zstd")
        self._files += 1


def _columns(arrow: Any, tokens: bool) -> list[tuple[str, Any]]:
    text, number, whole, truth = arrow.string(), arrow.float64(), arrow.int64(), arrow.bool_()
    function = arrow.struct([("name", text), ("arguments", text)])
    call = arrow.struct([("id", text), ("type", text), ("function", function)])
    keys = ("role", "content", "reasoning_content", "name", "tool_call_id")
    message = arrow.struct([*((key, text) for key in keys), ("tool_calls", arrow.list_(call)), ("weight", whole)])
    rows = {"token_ids": arrow.int32(), "loss_mask": truth, "logprobs": number, "versions": arrow.int32()}
    return [
        *((name, text) for name in ("id", "group_id", "task_id", "task_kind", "env", "model", "phase")),
        *((name, whole) for name in ("step", "seed")),
        *((name, text) for name in ("outcome", "error", "ended_by")),
        ("reward", number),
        ("rewards", arrow.list_(arrow.struct([("name", text), ("value", number)]))),
        ("success", truth),
        ("messages", arrow.list_(message)),
        *((name, text) for name in ("tools", "target", "metadata", "info", "lineage")),
        *((name, whole) for name in ("turns", "sampled_tokens")),
        *((name, arrow.list_(arrow.list_(rows[name]))) for name in _TOKENS if tokens),
    ]


def _row(selected: Selected, model: str | None, tools: Sequence[Any], tokens: bool) -> dict[str, Any]:
    episode = selected.episode
    task = episode.task
    about = outcome_of(episode)
    del about["task"]
    lineage = about.pop("lineage", None)
    row: dict[str, Any] = {
        **about,
        "task_id": task.id,
        "task_kind": task.kind,
        "model": model,
        "phase": selected.phase,
        "step": selected.step,
        "rewards": [{"name": name, "value": value} for name, value in episode.rewards.items()],
        "messages": [_message(with_weight(each)) for part in conversations(episode) for each in part],
        "tools": _json(tools) if tools else None,
        "target": None if task.target is None else _json(task.target),
        "metadata": _json(task.metadata) if task.metadata else None,
        "info": _json(episode.info) if episode.info else None,
        "lineage": _json(lineage) if lineage else None,
        "turns": len(episode.work),
        "sampled_tokens": episode.num_sampled,
    }
    for name in _TOKENS if tokens else ():
        attribute = "generator_logprobs" if name == "logprobs" else name
        row[name] = [getattr(of_model, attribute).tolist() for of_model in episode.rows]
    return row


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    as_they_are = ("tool_calls", "weight")
    return {key: value if key in as_they_are else str(value) for key, value in message.items() if value is not None}


def _json(value: Any) -> str:
    return json.dumps(value, default=str)
