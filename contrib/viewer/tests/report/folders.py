"""Folders of training runs, as a run would have left them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Turn, write_jsonl
from forge_env.core.types import Message, Outcome, Task, ToolUse


def attempt(
    task: str,
    reward: float | None,
    *,
    number: int = 0,
    answer: str = "42",
    call: str = "",
    tool: str = "python",
    output: str = "",
    seconds: float = 0.1,
    error: str = "",
    outcome: Outcome | None = None,
) -> Episode:
    """One turn on a task, with a call where there is an output."""
    user: Message = {"role": "user", "content": f"What is {task}?"}
    message: Message = {"role": "assistant", "content": answer}
    tail: tuple[Message, ...] = ()
    uses: tuple[ToolUse, ...] = ()
    if output:
        function = {"name": tool, "arguments": call}
        message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]  # type: ignore[typeddict-item]
        tail, uses = ({"role": "tool", "content": output},), (ToolUse(name=tool, seconds=seconds),)
    turn = Turn(kind="text", observation=(user,), message=message, tool_uses=uses)
    made = outcome or (Outcome.INFRA_FAULT if reward is None else Outcome.SCORED)
    return Episode(
        task=Task(prompt=(user,), id=task), turns=(turn,), tail=tail, outcome=made, reward=reward, error=error,
        id=f"{task}/{number}",
    )  # fmt: skip


def write_run(
    folder: Path,
    *,
    metrics: Iterable[Mapping[str, Any]] = (),
    episodes: Mapping[str, Sequence[Episode]] | None = None,
    facts: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    console: Iterable[Mapping[str, Any]] = (),
    config: str = "",
) -> Path:
    """Write the files of a run; files without an argument are left out."""
    (folder / "episodes").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    for name, items in (episodes or {}).items():
        write_jsonl(folder / "episodes" / f"{name}.jsonl", items)
    for name, data in (("run.json", facts), ("summary.json", summary)):
        if data is not None:
            (folder / name).write_text(json.dumps(data))
    (folder / "console.jsonl").write_text("".join(json.dumps(line) + "\n" for line in console))
    (folder / "config.yaml").write_text(config)
    return folder


def steps(count: int, **values: float) -> list[dict[str, Any]]:
    """Records of optimizer steps, whose reward rises."""
    more = {"s/step": 2.0, "tokens/s": 100.0, **values}
    return [
        {"phase": "train", "step": n, "time": 2.0 * n, "reward": n / count, "success": n / count, "loss": 1 / n, **more}
        for n in range(1, count + 1)
    ]
