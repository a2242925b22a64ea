"""A run: its services, and the phases that all algorithms share (model, warm-up, evaluation, closing)."""

from __future__ import annotations

import functools
import json
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from agents.model_folder import find_model
from envs.actors.env import GroupSpec
from forge_env.core.episode import Group
from forge_env.core.errors import InvariantError, ServiceError, UserError, first_error
from forge_env.core.types import Task
from forge_env.evaluation.digests import changed, environment_digests
from forge_env.evaluation.evaluate import Evaluation, evaluate
from forge_env.rollout.factory import EnvFactory, make
from forge_env.runtime.launcher import Launcher, within
from forge_env.utils.disks import full_disk
from trainers.batching.batch import Sample
from trainers.checkpoints import Checkpoint, clean, path_of, steps_of
from trainers.config import RunConfig
from trainers.metrics.report import Report
from trainers.metrics.system import SystemMetrics
from trainers.model.make import count_parameters, make_model
from trainers.model.shape import made_model
from trainers.run.facts import add_fact, code_at_start, versions, write_facts
from trainers.run.run_folder import checkpoint_of, claim_folder, locked, new_folder
from trainers.run.services import Services, placement, start_services
from trainers.run.startup import Startup
from trainers.setup.deadlines import Deadlines, patience, while_moving
from trainers.setup.engine import episodes_at_once
from trainers.setup.figures import Figure, find_figures, prefix_of
from trainers.setup.hosts import make_hosts
from trainers.setup.placement import find_places
from trainers.setup.weight_store import find_store

TINY_WARMUP_STEPS = 200
STEP = "the trainer, which has training.step_seconds for a step,"
PUBLISH = "publishing the weights"
SAMPLES_SHOWN = 3


class OwnData(Protocol):
    """What a run trains on instead of an environment's tasks; it then does without an environment, if none is named."""

    def make_model(self, folder: Path) -> int:
        """Make a model of `model.size` for it; returns its number of parameters."""
        ...

    async def prepare(self, model: Path, say: Callable[[str], None]) -> None:
        """Get ready for this model, before anything is started."""
        ...


class Run:
    """The services and the record of one run. `open_run` makes it."""

    def __init__(
        self,
        algorithm: str,
        config: RunConfig,
        report: Report,
        checkpoint: Checkpoint | None = None,
        startup: Startup | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.report = report
        self.startup = startup or Startup()
        self.checkpoint = checkpoint
        """Where the run goes on; None for a new one."""
        self.factory: EnvFactory
        self.train_tasks: Sequence[Task] = ()
        self.figures: dict[str, Figure] = {}
        """What an evaluation measures; "" is the headline."""
        if config.env.name:
            self.factory = make(config.env.name, **config.env.options)
            seed, data = config.training.seed, config.dataset
            self.train_tasks = self.factory.tasks(data.split, count=data.tasks, seed=seed)
            self.figures = find_figures(config, self.factory.tasks("test", count=data.held_out, seed=seed))
        self.version = -1
        """Of the weights that were published last."""
        self.engines_version = -1
        """Of the weights that the engines generate from."""
        self._is_ahead = True  # the trainer of what it published last
        self.tokens_generated = 0
        self.tokens_trained = 0
        self.results: dict[str, Any] = {}
        self.services: Services
        self.pids: Callable[[], Mapping[str, Sequence[int]]] = dict
        """The processes of each service on this machine."""

    # ---- rollouts ----

    async def run_group(
        self,
        task: Task,
        index: int,
        *,
        phase: str,
        agent: str,
        count: int,
        is_measured: bool = False,
        **env_options: Any,
    ) -> Group:
        """Run one group in the EnvActor; its seed depends on the run's seed, the phase and the index only.

        It takes as long as it takes, so it is waited for within `moving`, or by the loop.
        """
        seed = self._seed(phase, index)
        call = self.services.envs.run_group.route(
            task,
            agent=agent,
            count=count,
            seed=seed,
            group_id=f"{phase}/{index}",
            env_options=env_options,
            is_measured=is_measured,
        )
        with self.report.timeline.span(
            f"{phase.partition('/')[0]} rollouts", f"group {index}", version=self.engines_version
        ):
            group: Group = await call
        self.tokens_generated += sum(episode.num_sampled for episode in group.episodes)
        return group

    async def run_wave(
        self,
        numbered: Sequence[tuple[Task, int]],
        *,
        phase: str,
        agent: str,
        count: int,
        is_measured: bool = False,
        **env_options: Any,
    ) -> list[Group]:
        """Run groups of (task, index) in lockstep; each has the seed that it has in `run_group`."""
        specs = [
            GroupSpec(
                task=task,
                agent=agent,
                count=count,
                seed=self._seed(phase, index),
                group_id=f"{phase}/{index}",
                env_options=env_options,
                is_measured=is_measured,
            )
            for task, index in numbered
        ]
        call = self.services.envs.run_wave.route(specs)
        name = f"groups {numbered[0][1]} to {numbered[-1][1]}"
        with self.report.timeline.span(f"{phase.partition('/')[0]} rollouts", name, version=self.engines_version):
            groups: list[Group] = await call
        self.tokens_generated += sum(episode.num_sampled for group in groups for episode in group.episodes)
        return groups

    async def measure(
        self,
        tasks: Sequence[Task],
        *,
        phase: str,
        agent: str = "policy",
        count: int = 1,
        on_done: Callable[[int], None] = lambda done: None,
        **options: Any,
    ) -> Evaluation:
        """Episodes of an agent over the policy, `count` per task, with the seeds of the phase."""
        async with self.moving(phase):
            return await self._measure(tasks, phase=phase, agent=agent, count=count, on_done=on_done, **options)

    def moving(self, what: str) -> AbstractAsyncContextManager[None]:
        """Around groups that are waited for: an error ends them when nothing has moved for `patience`."""
        seconds = patience(self.config)
        stuck = f"{what}: nothing has moved for {seconds:g} s; the environments or the policy hang"
        return while_moving(lambda: self.services.progress(), seconds=seconds, stuck=lambda: stuck)

    async def _measure(
        self,
        tasks: Sequence[Task],
        *,
        phase: str,
        agent: str,
        count: int,
        on_done: Callable[[int], None],
        **options: Any,
    ) -> Evaluation:
        at_once = episodes_at_once(self.config)
        options["is_measured"] = True
        if not self.config.training.deterministic:
            run_group = functools.partial(self.run_group, phase=phase, agent=agent, count=count, **options)
            return await evaluate(run_group, tasks, concurrency=at_once, on_done=on_done)
        groups: list[Group] = []
        for first in range(0, len(tasks), at_once):
            wave = [(tasks[i], i) for i in range(first, min(first + at_once, len(tasks)))]
            groups += await self.run_wave(wave, phase=phase, agent=agent, count=count, **options)
            on_done(len(groups))
        return Evaluation(episodes=tuple(episode for group in groups for episode in group.episodes))

    async def evaluate(self, phase: str, *, step: int | None = None, **env_options: Any) -> Evaluation:
        """Measure the policy on the held-out tasks. The seeds are those of every other evaluation of this run.

        Args:
            phase: under which the episodes are kept; those of further figures are under PHASE.NAME.
            step: optimizer steps behind the weights that the engines have; where given, all figures are measured, and
                are metrics. Otherwise the headline alone is.
            env_options: for the environment, beside the run's.

        Returns:
            The headline.
        """
        started = time.perf_counter()
        headline = await self._measure_figure(phase, "", step, env_options)
        if step is None:
            return headline
        values = headline.metrics() | self.figures[""].settings()
        for name, figure in self.figures.items():
            if name:
                result = await self._measure_figure(f"{phase}.{name}", name, step, env_options)
                values |= {f"{prefix_of(name)}{key}": v for key, v in (result.metrics() | figure.settings()).items()}
                self.report.say(f"{phase}, {name}: held-out success {result}")
        values |= {"version": self.engines_version, "seconds/evaluation": time.perf_counter() - started}
        self.report.metrics("evaluation", step, values)
        return headline

    async def _measure_figure(
        self, phase: str, name: str, step: int | None, env_options: Mapping[str, Any]
    ) -> Evaluation:
        figure, started = self.figures[name], time.perf_counter()
        result = await self.measure(
            figure.tasks,
            phase=figure.seeds,  # not its own name: before and after shall meet the same seeds
            agent=figure.agent,
            count=figure.n,
            on_done=lambda done: self.report.progress(phase, done, len(figure.tasks), {}, since=started),
            **{**figure.env_options, **env_options},
        )
        self.report.episodes(phase, result.episodes)
        if step is not None:
            self._check_versions(result)
        return result

    def _check_versions(self, result: Evaluation) -> None:
        versions = {version for episode in result.valid for version in episode.versions}
        if versions - {self.engines_version}:
            raise InvariantError(f"version {self.engines_version} was to be evaluated, and {sorted(versions)} were")

    @property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """The figures of every evaluation that is written down, by step."""
        return {int(record["step"]): record for record in self.records("evaluation")}

    def records(self, phase: str) -> list[dict[str, float]]:
        """The metrics of a phase that are written down, in order."""
        whole = (self.report.folder / "metrics.jsonl").read_text(encoding="utf-8").rpartition("\n")[0]
        return [record for record in map(json.loads, whole.splitlines()) if record["phase"] == phase]

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights of a step between the first and the last are evaluated."""
        interval = self.config.evaluation.interval
        return bool(interval) and step % interval == 0 and 0 < step < self.config.training.steps

    async def evaluate_step(self, step: int) -> None:
        """Evaluate the weights of a step between the first and the last, which the engines have; each step once."""
        if step in self.evaluations:
            return
        result = await self.evaluate(f"evaluation_{step:06d}", step=step)
        self.report.say(f"held-out success after {step} steps: {result}")

    def _seed(self, phase: str, index: int) -> int:
        return random.Random(f"{self.config.training.seed}/{phase}/{index}").randrange(2**31)

    @property
    def deadlines(self) -> Deadlines:
        """Of what moves the weights of this run's model."""
        return Deadlines(self.config, self.results.get("model_parameters", 0))

    # ---- training ----

    @asynccontextmanager
    async def first_step(self) -> AsyncIterator[None]:
        """Around every optimizer step of the algorithm itself: after the first one the run says how it started."""
        with self.startup.phase("first optimizer step"):
            yield
        if self.startup.first_step is None:
            self.startup.end()
            self.startup.add_services(await self.services.started())
            self.results["startup"] = self.startup.summary()
            add_fact(self.report.folder, "startup", self.results["startup"])
            spans = [(name, began, seconds) for name, (began, seconds) in self.startup.phases.items() if began]
            self.report.timeline.past("start", spans)
            self.report.say(self.startup.text())

    async def train_step(
        self, samples: Sequence[Sample], loss: Any, *, old_is_present: bool = False
    ) -> dict[str, float]:
        training = self.config.training
        self._is_ahead = True
        call = self.services.trainer.step.call_one(samples, loss, self.config.temperature, old_is_present)
        with self.report.timeline.span("trainer", "optimizer step", samples=len(samples)):
            metrics: dict[str, float] = await within(training.step_seconds, call, STEP)
        self.tokens_trained += int(metrics.get("tokens", 0))
        return metrics

    async def old_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The trainer's logprobs of the sampled targets under its present weights, per sample."""
        call = self.services.trainer.logprobs.call_one(samples, self.config.temperature)
        with self.report.timeline.span("trainer", "old logprobs", samples=len(samples)):
            found: list[list[float]] = await within(self.config.training.step_seconds, call, STEP)
        return found

    async def reference_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The reference model's logprobs of the sampled targets, per sample."""
        assert self.services.reference is not None
        reference = self.services.reference.deadline(self.config.training.step_seconds)
        with self.report.timeline.span("reference model", "logprobs", samples=len(samples)):
            found: list[list[float]] = await reference.logprobs.route(samples, self.config.temperature)
        return found

    async def sync_weights(self) -> dict[str, float]:
        """Publish the trainer's weights as the next version, and put them into the live engine, unless it has them."""
        if self.is_synced:
            return {}
        return await self.publish_weights() | await self.pull_weights()

    @property
    def is_synced(self) -> bool:
        """Whether the engines generate from the weights that the trainer has now."""
        return not self._is_ahead and self.engines_version == self.version

    async def publish_weights(self) -> dict[str, float]:
        """Publish the trainer's weights as the next version: steps may go on, and `pull_weights` does the rest."""
        version = self.version + 1
        span = self.report.timeline.span("weights", "publish", version=version)
        with self.startup.phase("weights: publish"), span:
            seconds = await within(self.deadlines.weights, self.services.trainer.take.call_one(version), PUBLISH)
        self.version, self._is_ahead = version, False
        return {"seconds/publish": seconds}

    async def pull_weights(self) -> dict[str, float]:
        """Put the version that was published last into the live engines."""
        version = self.version
        span = self.report.timeline.span("weights", "commit", version=version)
        with self.startup.phase("weights: commit"), span:
            commit = await within(self.deadlines.weights, self.services.trainer.commit.call_one(), PUBLISH)
        self.services.published = version
        with self.startup.phase("waiting for the engine"):
            await self.services.engine_ready
        with self.startup.phase("weights: pull"), self.report.timeline.span("weights", "pull", version=version):
            seconds = self.deadlines.weights
            pulls = await self.services.policy.deadline(seconds).pull.fanout(version, seconds)
        self.engines_version = version
        slowest = {f"seconds/{part}": max((pull[part] for pull in pulls), default=0.0) for part in ("fetch", "swap")}
        return {"seconds/commit": commit, **slowest}

    # ---- checkpoints ----

    def is_due(self, step: int, *, window: int = 1) -> bool:
        """Whether a checkpoint is saved after this step; the one after the last step is saved in any case.

        Args:
            step: the last of a window of steps.
            window: steps of a window; one is due where its interval ends inside of it.
        """
        interval, begin = self.config.checkpoint.interval, (step - 1) // window * window
        return bool(interval) and step // interval > begin // interval and step < self.config.training.steps

    async def save_checkpoint(
        self,
        step: int,
        place: Mapping[str, Any],
        *,
        version: int,
        texts: Mapping[str, str] | None = None,
        asynchronous: bool = False,
    ) -> None:
        """Save the trainer, and all that this run needs to go on after `step`.

        Args:
            step: optimizer steps that are done.
            place: what the algorithm itself has to know, as JSON; `restore` returns it.
            version: under which the weights are published when the run goes on.
            texts: further files of the checkpoint's folder, by name.
            asynchronous: return when the state is copied; the files are written while training goes on.
        """
        extra = {
            "algorithm": self.algorithm,
            "config": asdict(self.config),
            "version": version,
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.tokens_trained,
            "results": self.results,
            "report": self.report.mark(),
            "place": place,
        }
        folder = str(path_of(self.report.folder, step))
        options = {"texts": texts, "asynchronous": asynchronous, "keep_last": self.config.checkpoint.keep_last}
        call = self.services.trainer.save.call_one(folder, step, extra, **options)
        with self.report.timeline.span("checkpoint", f"step {step}"):
            await within(self.deadlines.checkpoint, call, "the checkpoint")

    async def restore(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Put the trainer and the report where they were at a checkpoint; returns its `place`.

        The next `sync_weights` publishes the weights as the version that they had. The record is cut once the trainer
        has loaded: until then, another checkpoint could be chosen.
        """
        saved = checkpoint.extra
        load = self.services.trainer.load.call_one(str(checkpoint.path))
        await within(self.deadlines.checkpoint, load, "loading the checkpoint")
        clean(self.report.folder, checkpoint.step)
        self.report.go_back(saved["report"])
        self.measure_system()
        self.results |= saved["results"]
        self.tokens_generated, self.tokens_trained = saved["tokens_generated"], saved["tokens_trained"]
        self.version, self._is_ahead = saved["version"] - 1, True
        self.report.say(f"{self.algorithm} goes on after step {checkpoint.step}, from {checkpoint.path}")
        place: Mapping[str, Any] = saved["place"]
        return place

    async def export(self) -> None:
        """Write the model as a Hugging Face folder."""
        call = self.services.trainer.export_hf.call_one(str(self.report.folder / "model"))
        await within(self.deadlines.weights, call, "the export")

    def measure_system(self) -> None:
        """Measure what the run takes of this machine, from now on."""
        interval = self.config.metrics.system_seconds
        if interval:
            places = (place for each in find_places(self.config).values() for place in each)
            gpus = sorted({gpu for place in places if place.host == 0 for gpu in place.gpus})
            self.report.measure_system(SystemMetrics(self.report.folder, self.pids, gpus), interval)

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Write summary.json: what every run has in common, and `values`."""
        measured = {step: figures["success"] for step, figures in self.evaluations.items() if "success" in figures}
        best = max(measured, key=lambda step: (measured[step], -step), default=None)
        common = {
            "env": self.config.env.name,
            "algorithm": self.algorithm,
            "seed": self.config.training.seed,
            "steps": self.config.training.steps,
            "best_step": best,
            "best_success": None if best is None else measured[best],
            "evaluations": self._figures_measured(),
            "total_seconds": time.perf_counter() - self.report.started,
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.tokens_trained,
            **self.report.peaks(),
            "versions": versions(),
        }
        self.report.summary({**common, **self.results, **values})

    def _figures_measured(self) -> dict[str, dict[str, Any]]:
        """Every figure with what it depends on, as the first and the last evaluation found it; by name, "headline" the
        first."""
        records = [record for _, record in sorted(self.evaluations.items())]
        return {
            name or "headline": {
                "split": figure.split,
                "options": dict(figure.options),
                "tasks": len(figure.tasks),
                **figure.settings(),
                "success_first": records[0].get(f"{prefix_of(name)}success"),
                "success_last": records[-1].get(f"{prefix_of(name)}success"),
            }
            for name, figure in self.figures.items()
            if records
        }


@asynccontextmanager
async def open_run(algorithm: str, config: RunConfig, data: OwnData | None = None) -> AsyncIterator[Run]:
    """Start the services of a run; ends them all, however the run ends.

    Args:
        algorithm: its name, for people.
        config: of the run. Without an environment's name, the trainer is the only service.
        data: what is trained on, where that is not the environment's tasks.

    Raises:
        UserError: for everything that a user can mend, before anything is started where possible.
    """
    startup = Startup()
    subject = config.env.name or "data"
    checkpoint = checkpoint_of(algorithm, config)
    folder = Path(config.output) if checkpoint else claim_folder(config.output or new_folder(algorithm, config))
    may_remove = False
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(locked(folder))
            may_remove = checkpoint is None
            report = stack.enter_context(Report(folder, asdict(config)))
            if checkpoint:
                report.check(checkpoint.extra["report"])
            with startup.phase("tasks"):
                run = Run(algorithm, config, report, checkpoint, startup)
            where = f"everything is written to {folder}"
            report.say(f"{algorithm} on {subject}, seed {config.training.seed}; {where}")
            with startup.phase("model"):
                model, parameters = await _prepare_model(run, data)
            run.results |= {"model": str(model), "model_parameters": parameters}
            code = environment_digests(run.factory) if config.env.name else {}
            if before := code_at_start(folder):
                for part in changed({"environment": before}, {"environment": code}):
                    report.warn(f"{part} has changed since this run began, and its earlier figures are of what it was")
            write_facts(folder, algorithm, config, run.results, code)
            if data is not None:
                with startup.phase("data"):
                    await data.prepare(model, report.say)
            store, which = find_store(config, parameters)
            stack.push_async_callback(store.close)
            hosts = make_hosts(config)
            with startup.phase("launcher"):
                launcher = await stack.enter_async_context(Launcher(folder / "logs", say=report.warn, hosts=hosts))
            for sentence in hosts.summary() if hosts else ():
                report.say(sentence)
            run.pids = launcher.pids
            run.services = await start_services(config, launcher, str(model), store, run.deadlines)
            stack.push_async_callback(run.services.stop_waiting)
            stack.callback(report.stop_measuring)
            run.results["setup_seconds"] = time.perf_counter() - report.started
            report.say(placement(config))
            if config.env.name:
                report.say(which)
                if patience(config) > config.training.step_seconds:
                    report.say(
                        f"groups are waited for while nothing moves for {patience(config):g} s, not for "
                        f"training.step_seconds ({config.training.step_seconds:g}): a legal episode may take so long"
                    )
            may_remove = False
            if not checkpoint:  # one that goes on has its record cut first
                run.measure_system()
            yield run
    except BaseException as error:
        cause, saved = first_error(error), steps_of(folder)
        onward = f"go on from step {max(saved)} with --resume --output {folder}" if saved else ""
        if isinstance(cause, ServiceError) and onward:
            raise ServiceError(f"{cause}; {onward}") from error
        if isinstance(cause, OSError) and (full := full_disk(cause, folder)):
            raise UserError(f"{folder} cannot be written: {full}; make room, and {onward or 'start again'}") from error
        if may_remove and isinstance(first_error(error), UserError):
            shutil.rmtree(folder, ignore_errors=True)  # nothing has run: the next try may have the same folder
        raise


async def _prepare_model(run: Run, data: OwnData | None) -> tuple[Path, int]:
    config, report = run.config, run.report
    if config.model.path:
        model = find_model(config.model.path)
        report.say(f"model {model}")
        return model, count_parameters(model)
    model = report.folder / "initial_model"
    if run.checkpoint:
        return find_model(str(model)), count_parameters(model)
    if data is not None:
        parameters = data.make_model(model)
    else:
        parameters = await make_model(
            model, run.factory, seed=config.training.seed, limits=config.env.limits(), size=config.model.size
        )
    report.say(f"made {made_model(config.model.size)} with {parameters:,} parameters")
    return model, parameters
