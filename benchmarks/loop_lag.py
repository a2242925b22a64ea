"""How long the controller's event loop is blocked by steps of many long episodes.

    python -m benchmarks.loop_lag [--json FILE] [--episodes 256] [--tokens 32000] [--steps 3] [--slow 20]

Everything but the engine and the model is what a run has: a process with an EnvActor that plays groups of ten-turn
episodes (one for every core but one), their way to the controller by Monarch, `Loop` and `PolicyGradientWork`, rewards
and advantages, the files of the run, and the message with the samples to a process that stands for the trainer and
reads every token. The tokens are drawn at random, with logprobs of float32 as an engine's are, and take no time.

A coroutine on the controller's loop asks to be woken every millisecond, and notes how much later it is, by the clock
("lag") and by the CPU time that the loop's thread has spent meanwhile ("busy"). On an idle machine both say the same of
a callback that computes; where other processes have the cores, the clock says more.

    lag             seconds between two turns of the loop: what a ping, or any message, has to wait
    busy            CPU seconds of the loop's thread between two turns of the loop
    loop_cpu        CPU seconds of the loop's thread in a step
    controller_cpu  CPU seconds of the controller's process in a step, with all its threads
    envs_cpu        CPU seconds of the environments' processes in a step

`--slow MS` says which callbacks take longer, by asyncio's debug mode, which itself costs time.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agents.generator.policy import PolicyActor
from benchmarks.long_episodes import CHARACTERS, LongEnv, ReadingTrainer
from benchmarks.machine import describe
from envs.actors.env import EnvActor
from forge_env.core.episode import Group
from forge_env.core.faults import SHRINK
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.rollout import GroupSpec
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.process.ranks import AllRanks
from forge_env.runtime.service import Service, ServiceOptions
from forge_env.utils.gc_settings import shorten_collections
from trainers import grpo
from trainers.config import SHORT_OPTIONS
from trainers.controller.alarms import make_alarm
from trainers.controller.learner import Learner
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopSettings
from trainers.controller.sample_maker import SampleMaker
from trainers.run.delivery import Delivery
from trainers.run.evaluations import Evaluations
from trainers.run.rollouts import Rollouts
from trainers.run.run import Run
from trainers.run.run_record import RunRecord
from trainers.run.trainer import Trainer
from trainers.run.weight_sync import WeightAges, WeightSync
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

TURNS, SIBLINGS, ADDED = 10, 8, 1000
PROBE_SECONDS = 0.001
AIM_MS = 20.0


@dataclass
class Probe:
    """What the loop's turns took, by the part of the run that they were in."""

    part: str = "rollouts"
    lags: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    collections: list[float] = field(default_factory=list)
    """Seconds of each run of the garbage collector, in any thread; all others wait for it."""
    _collecting: float = 0.0

    def collected(self, phase: str, info: Any) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            self.collections.append(time.perf_counter() - self._collecting)

    async def watch(self) -> None:
        clock, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            now, spent = time.perf_counter(), time.thread_time()
            self.lags.setdefault(self.part, []).append((now - clock - PROBE_SECONDS, spent - cpu))
            clock, cpu = now, spent

    def figures(self) -> dict[str, dict[str, float]]:
        everything = [lag for lags in self.lags.values() for lag in lags]
        return {name: _figures(lags) for name, lags in {"all": everything, **self.lags}.items() if lags}


def _figures(lags: Sequence[tuple[float, float]]) -> dict[str, float]:
    by_clock, by_cpu = (1000 * np.array(column).clip(0) for column in zip(*lags, strict=True))
    return {
        "turns": len(lags),
        "lag_p50_ms": float(np.median(by_clock)),
        "lag_p99_ms": float(np.percentile(by_clock, 99)),
        "lag_max_ms": float(by_clock.max()),
        "busy_p99_ms": float(np.percentile(by_cpu, 99)),
        "busy_max_ms": float(by_cpu.max()),
        "lags_above_aim": int((by_clock > AIM_MS).sum()),
        "seconds_above_aim": float(by_clock[by_clock > AIM_MS].sum() / 1000),
    }


@dataclass(kw_only=True)
class Weights(WeightSync):
    """The weights of engines that have every version at once."""

    async def publish(self, steps: int) -> dict[str, float]:
        self._published_steps = steps
        return {}

    async def pull(self) -> dict[str, float]:
        self.engine_steps = self._published_steps
        return {}

    async def prove(self) -> dict[str, float]:
        return {}


@dataclass(kw_only=True)
class ProbedRollouts(Rollouts):
    """Rollouts that tell the probe when they begin a group."""

    probe: Probe

    async def progress(self) -> object:
        return object()

    async def run_group(self, spec: GroupSpec) -> Group:
        self.probe.part = "rollouts"
        return await super().run_group(spec)


@dataclass(kw_only=True)
class ProbedLearner(Learner):
    """A learner that tells the probe which part is under way."""

    probe: Probe

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        self.probe.part = "samples and the trainer's call"
        return await super().train_step(step, groups)

    def record_step(self, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        self.probe.part = "records"
        super().record_step(step, groups, metrics)


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run of a few steps; returns its figures."""
    loop = asyncio.get_running_loop()
    if options.slow:
        logging.basicConfig(level=logging.WARNING)
        loop.set_debug(True)
        loop.slow_callback_duration = options.slow / 1000
    groups = options.episodes // SIBLINGS
    arguments = ["--env", "benchmarks.long_episodes:LongEnv", "--grpo.n_samples", str(SIBLINGS)]
    arguments += ["--model", "Qwen/Qwen3-0.6B"]  # which is not started
    config = parse(grpo.Config, [*arguments, "--steps", str(options.steps), *options.options], SHORT_OPTIONS)
    plan, probe = make_plan(config, grpo.GRPO), Probe()
    sampled = options.tokens // TURNS - ADDED
    agent = {"added": ADDED, "sampled": sampled, "seconds": options.seconds}
    with RunRecord(folder, dataclasses.asdict(plan.config)) as record:
        async with Launcher(folder / "logs") as launcher:
            envs = Service(
                actor_class=EnvActor,
                arguments={
                    "env": "benchmarks.long_episodes:LongEnv",
                    "options": {"turns": TURNS, "characters": ADDED * CHARACTERS},
                    "agents": {"policy": ("benchmarks.long_episodes:LongAgent", agent)},
                    "limits": EpisodeLimits(max_turns=TURNS + 1, max_tokens=10**6),
                    "on_fault": SHRINK,
                },
                name="envs",
                options=ServiceOptions(num_replicas=options.processes),
                launcher=launcher,
            )
            trainer: Any = AllRanks(launcher.spawn("trainer", ReadingTrainer))
            await asyncio.gather(envs.start(), launcher.start("trainer"))
            engines = Service(actor_class=PolicyActor, arguments={}, name="generator", launcher=launcher)  # not started
            weights = Weights(
                trainer=trainer,
                engines=engines,
                engine_ready=asyncio.create_task(asyncio.sleep(0)),
                record=record,
                delivery=Delivery(),
                ages=WeightAges(staleness=0),
                seconds=60.0,
            )
            weights.newest = weights.in_engines = 0
            record.startup.end()  # its first step asks no service how it did
            rollouts = ProbedRollouts(
                plan=plan, envs={"": envs}, engines=engines, weights=weights, record=record, probe=probe
            )
            run = Run(
                plan=plan,
                rollouts=rollouts,
                trainer=Trainer(plan, trainer, weights, record, model=folder),
                weights=weights,
                record=record,
                evaluations=Evaluations(rollouts=rollouts, held_out={}),
                launcher=launcher,
                model=folder,
                parameters=0,
                setup_seconds=0.0,
                train_tasks={"": LongEnv.tasks(count=2 * groups * options.steps)},
                checkpoint=None,
            )
            assert plan.objective is not None
            learner = ProbedLearner(
                run=run,
                objective=plan.objective,
                alarm=make_alarm(plan, record.say),
                start_time=time.perf_counter(),
                probe=probe,
            )
            if plan.objective.kl_reference == "model":  # there is no reference model here: the trainer does its work
                learner.make_samples = SampleMaker(objective=plan.objective, reference=run.trainer.logprobs)
            settings = LoopSettings(steps=options.steps, batch_size=groups, staleness=plan.config.training.most_behind)
            pids = [pid for name, numbers in launcher.pids().items() if name.startswith("envs") for pid in numbers]
            before = time.thread_time(), time.process_time(), sum(map(cpu_of, pids)), time.perf_counter()
            watching = asyncio.create_task(probe.watch())
            shorten_collections()  # as open_run does
            gc.callbacks.append(probe.collected)
            await Loop(rollouts, learner, weights, settings).run()
            after = time.thread_time(), time.process_time(), sum(map(cpu_of, pids)), time.perf_counter()
            watching.cancel()
            gc.callbacks.remove(probe.collected)
    spent = [(b - a) / options.steps for a, b in zip(before, after, strict=True)]
    names = ("loop_cpu_seconds", "controller_cpu_seconds", "envs_cpu_seconds", "seconds")
    longest = 1000 * max(probe.collections, default=0.0)
    figures = {"a_step": dict(zip(names, spent, strict=True)), "longest_collection_ms": longest}
    return {**figures, "parts": probe.figures(), **_files(folder)}


def cpu_of(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _files(folder: Path) -> dict[str, Any]:
    path = folder / "episodes" / "train.jsonl"
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
    return {"recorded_episodes": lines, "recorded_bytes": path.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    parser.add_argument("--episodes", type=int, default=256, help="of a step, in groups of 8")
    parser.add_argument("--tokens", type=int, default=32_000, help="of an episode, in 10 turns")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="that a turn takes at most")
    parser.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--slow", type=float, default=0.0, help="say which callbacks take so many milliseconds")
    parser.add_argument("options", nargs="*", help="further options of trainers.grpo, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(options, Path(folder) / "run"))
    for part, results in figures["parts"].items():
        print(f"{part:>32}  " + "  ".join(f"{name} {value:,.1f}" for name, value in results.items()))
    print(f"longest run of the garbage collector: {figures['longest_collection_ms']:.1f} ms")
    print("a step: " + "  ".join(f"{name} {value:.2f}" for name, value in figures["a_step"].items()))
    if options.json:
        settings = {"episodes": options.episodes, "tokens": options.tokens, "turns": TURNS, "steps": options.steps}
        settings |= {"options": options.options, "env_processes": options.processes, "aim_ms": AIM_MS}
        options.json.write_text(json.dumps({"machine": describe(), **settings, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
