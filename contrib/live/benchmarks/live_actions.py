"""Actions on a live run: is every prompt trained once, how long does an action take, and does a step get slower?

    python -m contrib.live.benchmarks.live_actions [--steps 200] [--kills 4] [OPTIONS OF THE RUN]

One real run, on the CPU unless its options say otherwise, in blocks of ten steps. Every second block is left alone. Of
the others, one is looked at and has a limit set about four times a second; in the next, groups are requeued and the
environments killed, which repeats work and counts for no step time. A pause, and sometimes an evaluation, stand before
a block, whose first two steps do not count. At the end the ledger is compared with the episodes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contrib.live.client import FILE, LiveClient
from forge_env.core.errors import ForgeError
from forge_env.records.run_files import metrics_of, steps_of
from trainers.checkpoints import read_manifest

BLOCK, GROUPS, SIBLINGS = 10, 4, 4
OPTIONS = (
    "--env", "math", "--warmup.steps", "0", "--dataset.held_out", "4", "--training.batch_size", str(GROUPS),
    "--grpo.n_samples", str(SIBLINGS), "--training.staleness", "1", "--training.entropy_coef", "0.01",
)  # fmt: skip
DEADLINE = 1200.0
"""Seconds of the whole run."""


def timed(seconds: dict[str, list[float]], client: LiveClient, action: str, value: str = "") -> None:
    """Send an action; a refusal is an answer, too."""
    started = time.perf_counter()
    try:
        client.act(action, value)
    except ForgeError:
        pass
    seconds.setdefault(action, []).append(time.perf_counter() - started)


def done_steps(output: Path) -> int:
    """The steps that are written down: a block that is left alone is not asked."""
    return len(metrics_of(output, "train"))


def steps_of_state(client: LiveClient) -> int:
    queue = client.look()["queue"]
    return int(queue["steps_done"]) if queue else 0


def books(output: Path) -> dict[str, Any]:
    """Compare the ledger of the newest checkpoint with the episodes that were trained."""
    step, folder = list(steps_of(output).items())[-1]
    ledger = read_manifest(folder)["extra"]["place"]["ledger"]
    lines = (output / "episodes" / "train.jsonl").read_text().splitlines()
    groups = Counter(json.loads(line)["group_id"] for line in lines)
    trained = [int(name.removeprefix("train/")) for name in groups]
    missing = set(range(ledger["next"])) - set(trained) - set(ledger["open"])
    return {
        "steps": step,
        "prompts": ledger["next"],
        "trained": ledger["trained"],
        "lost": len(missing) - sum(ledger["dropped"].values()),
        "trained_twice": sum(count > SIBLINGS for count in groups.values()),
    }


def measure(output: Path, steps: int, kills: int, options: Sequence[str]) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "trainers.grpo",
        "--output",
        str(output),
        "--steps",
        str(steps),
        *OPTIONS,
        *options,
    ]
    seconds: dict[str, list[float]] = {}
    kill_blocks = {1 + 4 * number for number in range(kills)}
    killed = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + DEADLINE
        while not (output / FILE).is_file():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the run did not start")
            time.sleep(0.05)
        with LiveClient(output, "benchmark") as client:
            begun = requeued_at = -1
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    done = done_steps(output) if begun % 4 in (0, 2) else steps_of_state(client)
                    block = done // BLOCK
                    if not done:
                        time.sleep(0.1)
                        continue
                    if block != begun:
                        begun = block
                        timed(seconds, client, "pause")
                        if block % 8 == 2:
                            timed(seconds, client, "evaluate")
                        time.sleep(0.3)
                        timed(seconds, client, "resume")
                        if block in kill_blocks and killed < kills:
                            pids = json.loads((output / "logs" / "pids.json").read_text())
                            os.kill(int(pids["envs"][0]), signal.SIGKILL)
                            killed += 1
                    if block % 4 == 3:
                        timed(seconds, client, "set", f"env.episode_seconds={300 + done}")
                    elif block % 4 == 1 and done > requeued_at and (groups := client.look()["groups"]):
                        timed(seconds, client, "requeue", groups[0]["group"])  # once a step, or none would end
                        requeued_at = done
                    time.sleep(0.25)
                except (ForgeError, ProcessLookupError):
                    break  # the run ends
        if time.monotonic() > deadline:
            process.terminate()
        code = process.wait(DEADLINE)
    times: dict[str, list[float]] = {"alone": [], "acted": []}
    for record in metrics_of(output, "train"):
        step = int(record["step"]) - 1
        if step % BLOCK >= 2 and step >= BLOCK and step // BLOCK % 4 != 1:
            times["acted" if step // BLOCK % 4 == 3 else "alone"].append(record["seconds/step"])
    every = sorted(each for listed in seconds.values() for each in listed)
    medians = {name: statistics.median(listed) if listed else math.nan for name, listed in times.items()}
    return {
        "exit": code,
        "kills": killed,
        **books(output),
        "actions": {name: len(listed) for name, listed in seconds.items()},
        "action_p50_s": every[len(every) // 2],
        "action_p99_s": every[min(len(every) - 1, int(len(every) * 0.99))],
        "step_median_s": medians,
        "step_ratio": medians["acted"] / medians["alone"],
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=4)
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder) / "run", given.steps, given.kills, options), indent=2))


if __name__ == "__main__":
    main()
