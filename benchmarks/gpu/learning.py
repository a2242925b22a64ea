"""A model of 100 million parameters, made on the spot, learns a level that is harder than the CPU recipe's.

    python -m benchmarks.gpu.learning code_exec --output outputs/learning/code_exec [--minutes 7] [--json FILE]
    python -m benchmarks.gpu.learning tool_api --output outputs/learning/tool_api [--minutes 7] [--json FILE]

Runs recipes/100m_NAME.yaml through `python -m trainers.grpo`: made, warmed up, measured, trained, measured. After the
minutes, or on Ctrl-C or SIGTERM, the run is ended; the same command then goes on from its newest checkpoint, and starts
again where there is none. The seconds of all calls are counted, from the command to the end of the run. With --json the
figures are written; `benchmarks.gpu.curves` draws them. Options that it does not know are those of the run.

--cpu runs the CPU recipe with few steps instead: the same course, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from forge_env.records.run_files import steps_of

RECIPES = Path(__file__).parents[2] / "recipes"
ENVIRONMENTS = ("code_exec", "tool_api")
ON_CPU = ("--steps", "20", "--checkpoint.interval", "5", "--evaluation.interval", "10")
STOPPED = (
    128 + signal.SIGTERM,
    -signal.SIGTERM,
)  # exit codes after a SIGTERM; the second one is of an end at once
ENDING_S = 90.0  # for a run to end all its processes; then it is killed
OF_A_STEP = ("s/step", "seconds/rollout", "seconds/train", "entropy", "kl", "groups_with_signal")
KEPT = (
    "env", "seed", "steps", "model_parameters", "warmup_steps", "success_before", "success_before_ci95",
    "success_after", "success_after_ci95", "success_tool_off", "evaluation_episodes", "evaluation_faults", "by_kind",
    "startup", "setup_seconds", "train_seconds", "total_seconds", "median_step_seconds", "tokens_generated",
    "tokens_trained",
)  # fmt: skip


def command(name: str, run: Path, options: Sequence[str], *, cpu: bool) -> list[str]:
    """The command that starts the run in the folder `run`, or goes on with it; what cannot go on is removed."""
    page = [sys.executable, "-m", "trainers.grpo", "--output", str(run)]
    if steps_of(run):
        return [*page, "--resume"]
    shutil.rmtree(run, ignore_errors=True)
    if cpu:
        return [*page, "--config", str(RECIPES / "tiny_cpu.yaml"), "--env", name, *ON_CPU, *options]
    return [*page, "--config", str(RECIPES / f"100m_{name}.yaml"), *options]


def play(command: Sequence[str], seconds: float) -> int:
    """Run a command for so long at most; returns its exit code, one of `STOPPED` where it was ended.

    Raises:
        subprocess.TimeoutExpired: when it did not end by then; it is killed.
    """
    process = subprocess.Popen(command, start_new_session=True)  # a Ctrl-C is handed on by us, once
    received: list[int] = []

    def stop(number: int, frame: Any) -> None:
        if not received:
            process.terminate()
        received.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            stop(signal.SIGTERM, None)
            return process.wait(ENDING_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()


def measured(run: Path) -> dict[str, Any]:
    """What a run has written down so far; without a summary it is not complete."""
    path, summary = run / "metrics.jsonl", run / "summary.json"
    # Of a run that was killed, the last line may be cut.
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines]
    whole = json.loads(summary.read_text()) if summary.is_file() else {}

    def points(phase: str, *names: str, by_kind: bool = True) -> list[dict[str, float]]:
        wanted = ("step", "time", "success", *names)
        return [
            {n: value for n, value in record.items() if n in wanted or (by_kind and n.startswith("success/"))}
            for record in records
            if record["phase"] == phase and "success" in record
        ]

    curve = {
        "warmup": points("warmup", "loss"),
        "train": points("train", *OF_A_STEP, by_kind=False),
        "held_out": points("evaluation", "success_low", "success_high"),
    }
    figures: dict[str, Any] = {name: whole[name] for name in KEPT if name in whole}
    figures |= {name: value for name, value in whole.items() if name.startswith("peak_")}
    held_out = [point["success"] for point in curve["held_out"]]
    if held_out:
        figures["gain"] = held_out[-1] - held_out[0]
    return {"complete": bool(whole), **figures, "curve": curve}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=ENVIRONMENTS)
    parser.add_argument("--output", type=Path, required=True, help="folder of the run; given again, it goes on")
    parser.add_argument("--minutes", type=float, default=7.0, help="of this call")
    parser.add_argument("--cpu", action="store_true", help="the CPU recipe, with few steps")
    parser.add_argument("--json", type=Path)
    given, options = parser.parse_known_args()
    asked = {"env": given.env, "cpu": given.cpu, "options": options}
    run, record = given.output / "run", given.output / "calls.json"
    kept: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {"asked": asked, "seconds": []}
    if kept["asked"] != asked:
        parser.error(f"--output {given.output} holds a run of {kept['asked']}: give the same again, or another folder")
    code = 0
    if not (run / "summary.json").is_file():
        given.output.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        code = play(command(given.env, run, options, cpu=given.cpu), 60 * given.minutes)
        kept["seconds"].append(time.perf_counter() - started)
        record.write_text(json.dumps(kept, indent=2) + "\n")
    result = {
        "machine": describe(),
        "settings": {**asked, "minutes": given.minutes},
        "seconds_of_calls": kept["seconds"],
        "seconds": sum(kept["seconds"]),
        **measured(run),
    }
    print(json.dumps({name: value for name, value in result.items() if name != "curve"}, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    if code in STOPPED and not result["complete"]:
        again = f"goes on after step {max(steps_of(run))}" if steps_of(run) else "starts again"
        print(f"the run was ended after {kept['seconds'][-1]:.0f} s: the same command {again}", flush=True)
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
