"""Where a run writes down what happens: console, metrics.jsonl, TensorBoard, episodes, the curve, the summary."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from forge_env.episode import Episode, read_jsonl, write_jsonl
from forge_env.errors import UserError
from forge_env.evaluate import Evaluation
from forge_env.types import Message
from trainers.timeline import Timeline

CLOSE_SECONDS = 10.0
PRINT_SECONDS = 4.0  # between two lines of progress, where the console is not a terminal


class Report:
    """The files of one run's folder and its console.

    metrics.jsonl (one object per optimizer step), tensorboard/, episodes/PHASE.jsonl, trace.json, reward.png,
    summary.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "episodes").mkdir(parents=True, exist_ok=True)
        self.console = Console(highlight=False, soft_wrap=True)
        self.started = time.perf_counter()
        self.curve: list[dict[str, float]] = []
        self.timeline = Timeline(folder / "trace.json")
        self._metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._tensorboard: Any = None
        self._plots_ended = False
        self._last_print = 0.0
        self._line_open = False

    def mark(self) -> dict[str, Any]:
        """How far this report has come: the bytes of each file, which are on the disk by then, and the seconds."""
        self._metrics.flush()
        sizes = {}
        for path in [self.folder / "metrics.jsonl", *sorted((self.folder / "episodes").glob("*.jsonl"))]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                sizes[str(path.relative_to(self.folder))] = os.fstat(file.fileno()).st_size
        return {"bytes": sizes, "seconds": time.perf_counter() - self.started}

    def check(self, mark: Mapping[str, Any]) -> None:
        """Check that this folder has all that it had at a mark.

        Raises:
            UserError: when a file holds less than it did.
        """
        for name, size in mark["bytes"].items():
            path = self.folder / name
            found = path.stat().st_size if path.is_file() else 0
            if found < size:
                raise UserError(
                    f"{path} has {found} bytes, and had {size} when the checkpoint was saved: a run cannot go on "
                    f"without its record"
                )

    def go_back(self, mark: Mapping[str, Any]) -> None:
        """Be again as at a mark: cut off what was written after it, and make curve and TensorBoard of what stays.

        Raises:
            UserError: as `check`, before anything is changed.
        """
        self.check(mark)
        sizes = {self.folder / name: size for name, size in mark["bytes"].items()}
        for path, size in sizes.items():
            os.truncate(path, size)
        for path in {*(self.folder / "episodes").glob("*.jsonl")} - sizes.keys():
            path.unlink()
        (self.folder / "summary.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
        self.started -= mark["seconds"]
        for line in (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            phase, step, _ = record.pop("phase"), record.pop("step"), record.pop("time")
            self._plot(phase, step, record)
            if phase == "train" and "reward" in record:
                self.point(step, record)

    def say(self, text: str) -> None:
        """Print one line with the time since the start."""
        self._end_line()
        self.console.print(f"{time.perf_counter() - self.started:6.1f} s  {text}")

    def progress(self, phase: str, done: int, total: int, values: Mapping[str, float], *, since: float) -> None:
        """Show how far a phase is; on a terminal the line is rewritten in place."""
        now = time.perf_counter()
        if done < total and now - self._last_print < (0.1 if self.console.is_terminal else PRINT_SECONDS):
            return
        self._last_print = now
        left = (now - since) / max(done, 1) * (total - done)
        shown = "  ".join(f"{name} {_short(value)}" for name, value in values.items())
        line = f"{now - self.started:6.1f} s  {phase} {done}/{total}  {shown}  {left:.0f} s left"
        if self.console.is_terminal:
            sys.stdout.write("\r\x1b[2K" + line[: self.console.width - 1])
            sys.stdout.flush()
            self._line_open = True
            if done >= total:
                self._end_line()
        else:
            print(line, flush=True)

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Record one optimizer step."""
        record = {"phase": phase, "step": step, "time": time.perf_counter() - self.started, **values}
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()
        self._plot(phase, step, values)

    def point(self, step: int, values: Mapping[str, float]) -> None:
        """Add a step to the curve."""
        names = {"reward": "reward", "success": "success", "seconds": "s/step"}
        self.curve.append({"step": step} | {name: values[key] for name, key in names.items()})

    def _plot(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        if self._plots_ended:
            return
        if self._tensorboard is None:
            from torch.utils.tensorboard import SummaryWriter

            threading.excepthook = self._on_thread_error
            self._tensorboard = SummaryWriter(str(self.folder / "tensorboard"))
        for name, value in values.items():
            self._tensorboard.add_scalar(f"{phase}/{name}", value, step)

    def episodes(self, phase: str, episodes: Iterable[Episode]) -> None:
        write_jsonl(self._episodes(phase), episodes)

    def evaluation(self, phase: str) -> Evaluation:
        """Read back an evaluation whose episodes were written down."""
        return Evaluation(episodes=tuple(read_jsonl(self._episodes(phase))))

    def _episodes(self, phase: str) -> Path:
        return self.folder / "episodes" / f"{phase}.jsonl"

    def samples(self, title: str, episodes: Sequence[Episode]) -> None:
        """Print a few whole conversations."""
        self.say(f"[bold]{title}[/bold]")
        for number, episode in enumerate(episodes, 1):
            reward = "none" if episode.reward is None else f"{episode.reward:g}"
            self.console.print(f"  ({number}) reward {reward}, {episode.outcome}")
            for message in episode.messages:
                if message["role"] != "system":
                    self.console.print(f"      {message['role']:>9}: {_one_line(message)}", markup=False)

    def draw_curve(self, title: str, before: Evaluation | None, after: Evaluation | None) -> Path:
        """Draw the reward of every step, its running mean, and the two evaluations, into reward.png."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
        steps = [point["step"] for point in self.curve]
        rewards = [point["reward"] for point in self.curve]
        axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="mean reward of a step")
        axes.plot(steps, _running_mean(rewards, 10), color="#08519c", linewidth=2, label="running mean of 10 steps")
        for evaluation, step, label in ((before, 0, "before"), (after, steps[-1] if steps else 0, "after")):
            if evaluation is not None:
                low, high = evaluation.interval
                rate = evaluation.success_rate
                error = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
                axes.errorbar(step, rate, yerr=error, fmt="o", capsize=4, label=f"held-out success {label}: {rate:.2f}")
        axes.set(xlabel="optimizer step", ylabel="reward", ylim=(-0.02, 1.02), title=title)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        figure.tight_layout()
        path = self.folder / "reward.png"
        figure.savefig(path)
        plt.close(figure)
        return path

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json in one go: it exists only when the run is complete."""
        partial = self.folder / "summary.json.partial"
        partial.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")
        partial.rename(self.folder / "summary.json")

    def close(self) -> None:
        self._end_line()
        with ExitStack() as stack:  # each of them, also where the disk is full
            stack.callback(self._close_tensorboard)
            stack.callback(self.timeline.close)
            stack.callback(self._metrics.close)

    def _close_tensorboard(self) -> None:
        if self._tensorboard is not None and not self._plots_ended:
            closing = threading.Thread(target=self._tensorboard.close, daemon=True)  # it waits for its own thread
            closing.start()
            closing.join(CLOSE_SECONDS)

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread is ended by a full disk; to write on would wait for it for ever, and the run says it."""
        if isinstance(args.exc_value, OSError) and args.exc_value.errno in (errno.ENOSPC, errno.EDQUOT):
            self._plots_ended = True
        else:
            threading.__excepthook__(args)

    def _end_line(self) -> None:
        if self._line_open:
            sys.stdout.write("\n")
            self._line_open = False


def _one_line(message: Message) -> str:
    calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls", [])]
    text = "  ".join(part for part in (message["content"], *calls) if part)
    return text.replace("\n", "⏎")[:300]


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"
