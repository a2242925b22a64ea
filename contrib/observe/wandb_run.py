"""The process with Weights & Biases' package: it reads JSON lines from its standard input until the input ends.

The package starts a process of its own, hooks into the end of the interpreter, and may wait for a network; in this
process none of it touches the run. However the run ends, the input ends with it, and then this process ends in a
bounded time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

Lines = queue.SimpleQueue[dict[str, Any] | None]


def main() -> int:
    options = json.loads(sys.stdin.readline())
    lines: Lines = queue.SimpleQueue()
    # A thread reads, because the end of the input must be seen while the package waits, and the run never waits.
    threading.Thread(target=_read, args=(lines, options["finish_seconds"]), daemon=True).start()
    run = _begin(options)
    _take(run, lines)
    _finish(run)
    return 0


def _read(lines: Lines, finish_seconds: float) -> None:
    for line in sys.stdin:
        lines.put(json.loads(line))
    late = threading.Timer(finish_seconds, _give_up)
    late.daemon = True
    late.start()
    lines.put(None)


def _begin(options: dict[str, Any]) -> Any:
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        symlink=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,  # the run measures its machine itself
    )
    is_online = options["mode"] == "online"
    return wandb.init(
        mode=options["mode"],
        project=options["project"],
        name=options["name"],
        id=options["id"],
        resume="allow" if is_online else None,
        dir=options["dir"],
        config=options["config"],
        settings=settings,
    )


def _take(run: Any, lines: Lines) -> None:
    phases: set[str] = set()
    while (record := lines.get()) is not None:
        phase, axis = record["phase"], f"{record['phase']}/step"
        if phase not in phases:
            phases.add(phase)
            run.define_metric(f"{phase}/*", step_metric=axis)
        run.log({axis: record["step"], **{f"{phase}/{name}": value for name, value in record["values"].items()}})


def _finish(run: Any) -> None:
    import wandb

    run.finish()
    wandb.teardown()


def _give_up() -> None:
    """End at once. The package's own process notices this, and ends too."""
    print("W&B did not finish in time", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
