"""TrainingRun: a run as its caller in Python has it, and Callback: how the caller hears of it while it goes on."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.model_folder import trained_model
from forge_env.core.errors import UserError, first_error
from forge_env.records.run_files import SUMMARY, metrics_of, read_object, steps_of
from forge_env.records.run_weights import best_step, success_by_step
from trainers.run.controls import Controls

STEP, EVALUATION = "on_step", "on_evaluation"


class Callback:
    """Hears of a run in the process that called `train`, between two steps; the run waits for it.

    Example::

        class Enough(Callback):
            def on_evaluation(self, record):
                if record["success"] > 0.9:
                    self.run.stop()
    """

    run: TrainingRun
    """The run that calls it."""

    def on_step(self, record: Mapping[str, Any]) -> None:
        """Take the record of an optimizer step: "step", and what docs/metrics.md lists."""

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """Take the record of an evaluation; its "step" is 0 before the training."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A start of a run by itself, after the death of a process that nothing replaces."""

    step: int
    """The checkpoint that it goes on from; 0 is the beginning."""
    cause: str
    """As "the trainer process died of SIGKILL (signal 9)"."""
    at: str
    """UTC, in ISO 8601."""

    def __str__(self) -> str:
        cause = self.cause + (", likely out of memory" if "SIGKILL" in self.cause else "")
        return f"{cause}: started again from {f'step {self.step}' if self.step else 'the beginning'}"


class TrainingRun:
    """A run of `train`: under way, as its callbacks have it, or ended.

    Args:
        callbacks: objects with methods of `Callback`.
    """

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        for callback in _check(callbacks):
            callback.run = self
        self.folder = Path()
        """Everything that the run writes, see docs/training.md, What a run leaves; "." before it begins."""
        self.stopped = False
        """Whether it ended before its last step, by `stop` or Ctrl-C; `resume=True` goes on with it."""
        self.is_stopping = False
        self.restarts: list[Restart] = []
        """The starts after the first one that the run made by itself."""
        self.controls = Controls()
        """What was asked of it while it went on; a restart keeps that."""
        self.changed: Any = None
        """The settings, once a limit was changed; a restart has them."""
        self.from_step = 0
        """The checkpoint that it goes on from, until newer ones are removed; 0 is the newest one."""
        self.methods = {"train": STEP, "evaluation": EVALUATION}
        """The methods of callbacks by the phases of metrics; supervised training on demonstrations is a warm-up."""
        self._callbacks = callbacks
        self._error: UserError | None = None
        self._exit: SystemExit | None = None
        self._stop: Callable[[], None] | None = None

    @property
    def metrics(self) -> dict[str, list[dict[str, float]]]:
        """The records of metrics.jsonl so far, by phase: "train", "evaluation", "warmup" and "system"."""
        return {phase: metrics_of(self.folder, phase) for phase in ("train", "evaluation", "warmup", "system")}

    @property
    def best(self) -> int | None:
        """The best evaluated step of those with weights in the folder, the earliest of equals; None without any."""
        last = [self.summary["steps"]] if self.summary else []
        return best_step(success_by_step(self.folder), [*steps_of(self.folder), *last])

    @property
    def model(self) -> Path:
        """The Hugging Face folder of the last weights; of a stopped run, those of its newest checkpoint.

        Raises:
            UserError: it was stopped before its first optimizer step.
        """
        return trained_model(str(self.folder))

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says; empty if the run has not come to its end."""
        file = self.folder / SUMMARY
        return read_object(file) if file.is_file() else {}

    def stop(self) -> None:
        """End the run after the step in progress, with a checkpoint. Any thread may call it."""
        self.is_stopping = True
        if (stop := self._stop) is not None:
            stop()

    # ---- for the run itself ----

    async def in_order(self, work: Coroutine[Any, Any, None], say: Callable[[str], None]) -> None:
        """Await the work of the run. A cancellation stops it, which `say` is told; a second one ends it at once."""
        task, times = asyncio.ensure_future(work), 0
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                times += 1
                if not task.done():
                    self.is_stopping = True
                    say("stopping; once more ends it at once" if times == 1 else "ending every process of this run")
                    task.cancel()
        error = None if task.cancelled() else task.exception()
        self.stopped = task.cancelled() or (times > 0 and error is not None)
        if self._exit is not None:
            raise self._exit
        if times:
            raise asyncio.CancelledError from error
        if error is not None:
            raise first_error(error)
        if not self.stopped:
            self._raise()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let a stop call a function, in the thread of the event loop, while the block is active."""
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        def call() -> None:
            if threading.get_ident() == thread:
                stop()
            else:
                loop.call_soon_threadsafe(stop)

        self._stop = call
        try:
            if self.is_stopping:
                stop()
            yield
        finally:
            self._stop = None

    def check(self) -> None:
        """End the run if it is to stop: raises what a callback raised, or CancelledError."""
        if self.is_stopping:
            self._raise()
            raise asyncio.CancelledError

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Call the callbacks, as a sink of the run's metrics."""
        if (method := self.methods.get(phase)) is None:
            return
        for callback in self._callbacks:
            try:
                getattr(callback, method, _ignore)({"phase": phase, "step": step, **values})
            except (KeyboardInterrupt, SystemExit) as error:  # the event loop would end before the run's processes
                self._exit = error if isinstance(error, SystemExit) else None
                self.stop()
            except (Exception, asyncio.CancelledError) as error:
                name, last = f"{type(callback).__name__}.{method}", traceback.extract_tb(error.__traceback__)[-1]
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._error = UserError(f"the callback {name} raised {reason} ({last.filename}, line {last.lineno})")
                self.stop()

    def close(self) -> None:
        pass


def _ignore(record: Mapping[str, Any]) -> None:
    """A callback need not have both methods."""


def _check(callbacks: Any) -> Sequence[Any]:
    """Check callbacks before the run begins, because its first step may be minutes away."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise UserError(f"callbacks is {callbacks!r:.80}; give a list, as in callbacks=[Enough()]")
    for callback in callbacks:
        own = {name: getattr(callback, name) for name in dir(callback) if name.startswith("on_")}
        if isinstance(callback, type) or not own:
            raise UserError(
                f"the callback {callback!r:.80} has neither {STEP}(record) nor {EVALUATION}(record): give an instance "
                "of a subclass of trainers.Callback"
            )
        for name, method in own.items():
            text = f"the callback {type(callback).__name__} has"
            if name not in (STEP, EVALUATION):
                raise UserError(f"{text} a method {name}, which no run calls; a run calls {STEP} and {EVALUATION}")
            if inspect.iscoroutinefunction(method):
                raise UserError(f"{text} an async {name}, which nothing awaits: write def {name}(self, record)")
            try:
                inspect.signature(method).bind({})
            except TypeError as error:
                raise UserError(
                    f"{text} {name} with other arguments ({error}): write def {name}(self, record)"
                ) from None
            except ValueError:
                pass  # a function of C has no signature
    return callbacks
