"""Runs of `python -m trainers.grpo` that are ended after some steps, and what they measured: seconds, memory, MFU."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.flops import PEAK_FLOPS, step_flops
from forge_env.core.episode import Episode
from trainers.families.shape import ModelShape
from trainers.grpo import GRPO, Config
from trainers.setup.card import GIB
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

LOOK_S = 0.2  # between two looks at the metrics of a run
SECOND_SIGNAL_S = 1.0  # after the first one
ENDING_S = 60.0  # for a run to end its processes; then it is killed
SECONDS = (
    "step", "rollout", "train", "old_logprobs", "sync_stall", "sleep", "release", "publish", "commit", "fetch", "swap",
    "wake",
)  # fmt: skip
MISMATCH = re.compile("mean_abs_logprob_difference|ratio_min|ratio_max|kl|kl_from/.*")


def plan_of(options: Sequence[str]) -> RunPlan:
    """What `--dry-run` says of a run."""
    return make_plan(read_config(Config, options), GRPO)


def play(folder: Path, options: Sequence[str], *, steps: int, seconds: float) -> tuple[float, str]:
    """Run until so many optimizer steps are done, or the seconds are over, then end the run.

    The run's own end, with its checkpoint and its export, is left out: of an 8B model these are more than 100 GB.

    Returns:
        Seconds from the command on, and what came before the steps were done; "" where nothing did.
    """
    command = [sys.executable, "-m", "trainers.grpo", "--output", str(folder), *options]
    started, trouble = time.perf_counter(), ""
    process = subprocess.Popen(command)
    try:
        while len(records(folder, "train")) < steps and not trouble:
            if process.poll() is not None:
                trouble = f"the run ended with {process.returncode}"
            elif time.perf_counter() - started > seconds:
                trouble = f"{seconds:g} s were over"
            else:
                time.sleep(LOOK_S)
        return time.perf_counter() - started, trouble
    finally:
        for _ in range(2):  # the first signal lets a run keep a checkpoint, and the second one ends that
            process.send_signal(signal.SIGTERM)
            time.sleep(SECOND_SIGNAL_S)
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does, so that a run that it has started ends too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def records(folder: Path, phase: str) -> list[dict[str, Any]]:
    """The lines of a phase that a run has written so far."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.is_file() else []
    return [record for line in lines if (record := json.loads(line))["phase"] == phase]


def startup_of(folder: Path) -> dict[str, Any] | None:
    """The phases of a run up to its first step; None of a run that has not come so far."""
    path = folder / "run.json"
    found: dict[str, Any] | None = json.loads(path.read_text()).get("startup") if path.is_file() else None
    return found


def mismatch_of(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """How far engine and trainer are apart, by metric, in each of the steps."""
    names = sorted({name for step in steps for name in step if MISMATCH.fullmatch(name)})
    return {name: [step.get(name) for step in steps] for name in names}


def seconds_of(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Medians of the parts of a step; "trainer" is the trainer's own time, without waiting for the engine's sleep.

    `step_over_parts` is step / (rollout + train), and `step_over_strict_parts` the same with the trainer's own time.
    `mean_step` is no median: with staleness short and long steps alternate, and the mean says how fast the run is.
    """
    names = {name: f"seconds/{name}" for name in SECONDS} | {"trainer": "seconds"}
    found = {name: statistics.median(step[key] for step in steps) for name, key in names.items() if key in steps[0]}
    return found | {
        "mean_step": statistics.fmean(step["seconds/step"] for step in steps),
        "step_over_parts": found["step"] / (found["rollout"] + found["train"]),
        "step_over_strict_parts": found["step"] / (found["rollout"] + found["trainer"]),
        "weights_over_step": sum(found.get(name, 0.0) for name in ("fetch", "swap")) / found["step"],
    }


def throughput(folder: Path, steps: Sequence[Mapping[str, Any]], shape: ModelShape, plan: RunPlan) -> dict[str, float]:
    """Tokens and floating-point operations of a step, and MFU over the trainer's own time.

    Args:
        folder: of the run.
        steps: records of the steps that count.
        shape: of the model.
        plan: of the run. A trainer on a CPU has no peak to compare with.
    """
    gpus = plan.config.services.trainer.procs if plan.config.services.trainer.with_gpus else 0
    numbers = {record["step"] for record in steps}
    rows = row_lengths(folder, numbers)
    sampled = sum(step["tokens"] for step in steps)
    flops = step_flops(shape, rows, sampled, adapters=plan.lora.parameters(shape) if plan.lora else 0)
    seconds = sum(step["seconds"] for step in steps)
    found = {
        "tokens_of_a_step": sum(rows) / len(steps),
        "sampled_tokens_of_a_step": sampled / len(steps),
        "longest_row": float(max(rows, default=0)),
        "trainer_tokens_per_second": sum(rows) / seconds,
        "sampled_tokens_per_second": statistics.median(step["tokens/s"] for step in steps),
    }
    return found | ({"mfu": flops / seconds / (PEAK_FLOPS * gpus)} if gpus else {})


def row_lengths(folder: Path, steps: Iterable[int]) -> list[int]:
    """Tokens of every row that these optimizer steps were made of."""
    wanted = set(steps)
    trained = map(json.loads, _whole_lines(folder / "trained.jsonl"))
    named = {line["episode"] for line in trained if line["step"] in wanted}
    episodes = map(Episode.from_json, _whole_lines(folder / "episodes" / "train.jsonl"))
    return [len(row.token_ids) for episode in episodes if episode.id in named for row in episode.rows]


def _whole_lines(path: Path) -> Iterator[str]:
    """Lines of a file whose last one may be cut, for its writer was ended."""
    with path.open(encoding="utf-8") as lines:
        yield from (line for line in lines if line.endswith("\n"))


def memory_of(folder: Path, plan: RunPlan) -> dict[str, Any]:
    """The most that the driver counted, by GPU and service, beside what the plan says, and the difference in percent.

    Of a GPU: the most at any time, beside the fullest phase of the plan. Of the host: the most of the whole run and of
    each service, of which the plan says only what is offloaded.
    """
    peaks: dict[str, float] = {}
    for record in records(folder, "system"):
        for name, value in record.items():
            if name != "phase":
                peaks[name] = max(peaks.get(name, 0.0), value)
    host = {name: round(peaks[name] / GIB, 2) for name in peaks if re.match("(run/)?memory_bytes", name)}
    found: dict[str, Any] = {"host_gib": host}
    for card in plan.cards:
        gpu = f"gpu/{card.where.removeprefix('GPU ')}"
        services = {service for parts in card.phases.values() for service in parts}
        planned = {service: max(parts.get(service, 0.0) for parts in card.phases.values()) for service in services}
        found[card.where] = {"all": _compared(card.worst, peaks.get(f"{gpu}/memory_used_bytes"))} | {
            service: _compared(size, peaks.get(f"{gpu}/memory_bytes/{service}")) for service, size in planned.items()
        }
    return found


def _compared(planned: float, measured: float | None) -> dict[str, float | None]:
    """In GiB, and by how many percent the plan is above what was measured, if that is known."""
    return {
        "planned_gib": round(planned / GIB, 2),
        "measured_gib": round(measured / GIB, 2) if measured else None,
        "plan_above_percent": round(100 * (planned / measured - 1), 1) if measured else None,
    }
