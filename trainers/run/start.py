"""Starts the processes of a run, and makes its parts of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agents.generator.policy import PolicyActor
from envs.actors.env import EnvActor
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.process.network import LOOPBACK
from forge_env.runtime.service import Service
from trainers.algorithm import check_unchanged
from trainers.run.delivery import make_delivery
from trainers.run.rollouts import Rollouts
from trainers.run.run_record import RunRecord
from trainers.run.services import make_engines, make_environments, make_frozen, make_trainer
from trainers.run.trainer import Trainer
from trainers.run.trainer_actor import TrainerActor
from trainers.run.weight_ages import WeightAges
from trainers.run.weight_sync import WeightSync
from trainers.setup.run_plan import RunPlan


async def start_parts(
    plan: RunPlan,
    launcher: Launcher,
    model: str,
    record: RunRecord,
    *,
    with_environments: Callable[[Rollouts], Awaitable[None]],
) -> tuple[Trainer, Rollouts]:
    """Start everything at once, and wait for all but the engines; without an environment, the trainer alone.

    Args:
        plan: of the run. Its store is opened here, and closed by the caller after the launcher.
        record: told of each phase of the start, and of every update of the weights.
        with_environments: awaited as a part of the start, as soon as the environments are up. Trainer and engines may
            not be up by then.
    """
    seconds, store, starts = plan.deadlines.weights, plan.store, dict[str, Awaitable[Any]]()
    frozen: dict[str, Service[TrainerActor]] = {}
    if not plan.environments or store is None:
        ranks = make_trainer(plan, launcher, model, None)
        engines = Service(actor_class=PolicyActor, arguments={}, name="generator", launcher=launcher)  # never started
        envs = dict[str, Service[EnvActor]]()
        engine_ready = asyncio.create_task(asyncio.sleep(0))
    else:
        store.prepare(launcher.hosts.address if launcher.hosts else LOOPBACK)
        engines = make_engines(plan, launcher, model, store)
        ranks = make_trainer(plan, launcher, model, store)
        envs = make_environments(plan, launcher, model, engines.client)
        frozen = make_frozen(plan, launcher, model)
        processes = launcher.processes("store", ForgeActor) if store.needs_process else None
        # The engines are the slowest to start, and the warm-up does not need them.
        engine_ready = asyncio.create_task(_wait(record, "starting the engine", engines.start()))
        starts = {"opening the store": store.open(processes)}
        starts |= {f"starting the {name} model": service.start() for name, service in frozen.items()}
        if processes is not None:
            starts["starting the store"] = launcher.start("store", seconds=seconds)
    weights = WeightSync(
        trainer=ranks,
        engines=engines,
        engine_ready=engine_ready,
        record=record,
        delivery=make_delivery(plan),
        ages=WeightAges(staleness=plan.config.training.most_behind),
        seconds=seconds,
        sleeps=plan.engine.sleep and bool(plan.environments),
    )
    rollouts = Rollouts(plan=plan, envs=envs, engines=engines, weights=weights, record=record)

    async def start_environments() -> None:
        async with asyncio.TaskGroup() as starting:
            for name, service in rollouts.services.items():
                starting.create_task(_wait(record, f"starting the {name}", service.start()))
        await with_environments(rollouts)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_wait(record, "starting the trainer", launcher.start("trainer", seconds=seconds)))
            if plan.environments:
                tasks.create_task(start_environments())
            for what, start in starts.items():
                tasks.create_task(_wait(record, what, start))
        if plan.algorithm.target:
            check_unchanged(plan.algorithm)
        if plan.environments:
            await weights.begin()
    except BaseException:
        await weights.stop_waiting()
        raise
    return Trainer(plan, ranks, weights, record, Path(model), frozen), rollouts


async def _wait(record: RunRecord, what: str, start: Awaitable[Any]) -> None:
    with record.startup.waiting(what):
        await start
