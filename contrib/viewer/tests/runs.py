"""Small runs for the tests of the viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Turn, digest
from forge_env.core.types import Message, Outcome, Task, ToolCall, ToolUse
from tests.helpers import pages


def make_episode(
    name: str = "train/0/0",
    *,
    question: str = "What is 2 + 2?",
    answer: str = "4",
    output: str = "4",
    tool: str = "python",
    reward: float | None = 1.0,
    error: str = "",
    group: str = "",
    version: int = 0,
    reasoning: str = "",
    info: dict[str, Any] | None = None,
    outcome: Outcome | None = None,
    success: bool | None = None,
    kind: str = "",
) -> Episode:
    """An episode of two turns with tokens: a call of a tool, and the answer."""
    code = f"print({question!r})"
    call = ToolCall(id="call_0", name=tool, arguments={"code": code})
    called = [{"type": "function", "id": "call_0", "function": {"name": tool, "arguments": {"code": code}}}]
    message: Message = {"role": "assistant", "content": "", "tool_calls": called}
    if reasoning:
        message["reasoning_content"] = reasoning
    first = Turn(
        kind="sampled",
        observation=({"role": "system", "content": "Use the tool."}, {"role": "user", "content": question}),
        message=message,
        tool_calls=(call,),
        prompt_ids=(1, 2, 3),
        token_ids=(4, 5),
        logprobs=(-0.1, -2.5),
        versions=((version, 2),),
        starts_row=True,
        context_digest=digest((1, 2, 3)),
        policy_seconds=0.5,
        env_seconds=0.25,
        tool_uses=(ToolUse(name=tool, seconds=0.2, error="raised" if "Error" in output else ""),),
    )
    tool_output: Message = {"role": "tool", "content": output, "tool_call_id": "call_0", "name": tool}
    second = Turn(
        kind="sampled",
        observation=(tool_output,),
        message={"role": "assistant", "content": answer},
        prompt_ids=(6,),
        token_ids=(7, 8, 9),
        logprobs=(-0.01, -1.0, -7.0),
        versions=((version, 1), (version + 1, 2)),
        context_digest=digest((1, 2, 3, 4, 5, 6)),
        reward=reward or 0.0,
    )
    return Episode(
        task=Task(prompt=({"role": "user", "content": question},), target="4", kind=kind),
        turns=(first, second),
        reward=reward,
        outcome=outcome or (Outcome.SCORED if reward is not None else Outcome.INFRA_FAULT),
        success=success,
        id=name,
        group_id=group or name.rpartition("/")[0],
        env="math",
        seed=7,
        rewards={} if reward is None else {"tests": reward},
        error=error if reward is None else "",
        info={"seconds": 0.75, "started": 1.8e9, **(info or {})},
    )


def write(path: Path, *episodes: Episode) -> None:
    """Append episodes to a file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(episode.to_json() + "\n" for episode in episodes)


def write_metrics(run: Path, *steps: int, **values: float) -> None:
    """Append steps to metrics.jsonl."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in steps:
            record = {
                "phase": "train",
                "step": step,
                "time": step * 2.0,
                "reward": step / 10,
                "success": step / 10,
                "loss": 0.5,
            }
            file.write(json.dumps(record | values) + "\n")


def write_trace(run: Path) -> None:
    """A trace with two tracks, one of them in two lanes."""
    events: list[dict[str, Any]] = []
    for lane, name in enumerate(("train rollouts", "train rollouts 2", "trainer"), 1):
        events.append({"pid": 1, "name": "thread_name", "ph": "M", "tid": lane, "args": {"name": name}})
        for i in range(5):
            span = {"name": f"group {i}", "ph": "X", "tid": lane, "ts": (10 + i) * 1_000_000, "dur": 700_000}
            events.append({"pid": 1, **span, "args": {"version": i}})
    (run / "trace.json").write_text("[\n" + "\n,".join(map(json.dumps, events)) + "\n]")


FINDING = {"step": 3, "last_step": 9, "measured": "39 of 40 groups", "cause": "too hard", "settings": "easier tasks"}


def write_start(run: Path) -> None:
    """What a training run has written before its first step."""
    (run / "logs").mkdir(parents=True)
    facts = {"algorithm": "gspo", "env": "tool_api", "steps": 300, "findings": [FINDING]}
    (run / "run.json").write_text(json.dumps(facts))
    (run / "config.yaml").write_text("training:\n  steps: 300\n")
    line = {"time": 3.5, "kind": "warning", "text": "warning: 40 groups in a row without a signal"}
    (run / "console.jsonl").write_text(json.dumps(line) + "\nhalf of a li")
    (run / "logs" / "trainer.log").write_text("first line\nloss is falling\n")


def training_run(run: Path, groups: int = 3) -> Path:
    """A training run's folder: groups of four, curves, a timeline, a fault, and what was trained on."""
    episodes = [
        make_episode(
            f"train/{group}/{i}",
            question=f"What is {group} + {group}?",
            answer=str(2 * group),
            reward=float(i < group),
            version=group,
            kind="double" if group % 2 else "add",
            output="ZeroDivisionError: division by zero" if i == 3 else str(2 * group),
        )
        for group in range(groups)
        for i in range(4)
    ]
    fault = make_episode("train/9/0", question="What broke?", reward=None, error="SandboxError: no memory")
    write(run / "episodes" / "train.jsonl", *episodes, fault)
    write(run / "episodes" / "before.jsonl", make_episode("evaluation/0/0", reward=0.0))
    write(run / "episodes" / "after.jsonl", make_episode("evaluation/0/0", reward=1.0))
    write_metrics(run, *range(1, 11))
    write_trace(run)
    lines = [{"step": 1, "episode": episode.id, "advantages": [1.5, -0.5]} for episode in episodes[:4]]
    (run / "trained.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def data_of(file: Path) -> Any:
    """The data in an exported page."""
    return pages.data_of(file.read_text())
