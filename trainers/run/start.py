"""Starts the processes of a run, as its plan describes them, and makes its parts of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from agents.generator.policy import ActorPolicy, PolicyActor
from envs.actors.env import AgentSpec, EnvActor
from forge_env.core.protocols import Policy
from forge_env.rollout.lockstep import LockstepPolicy
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.calls.client import ServiceClient
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.process.ranks import LOOPBACK, AllRanks
from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.service import Service, ServiceOptions
from forge_env.runtime.weights import WeightStore
from trainers.algorithm import check_unchanged
from trainers.run.delivery import make_delivery
from trainers.run.rollouts import Rollouts
from trainers.run.run_record import RunRecord
from trainers.run.trainer import Trainer
from trainers.run.trainer_actor import TrainerActor, spawn_trainer
from trainers.run.weight_sync import WeightAges, WeightSync
from trainers.settings.services import ReplicasConfig, ServiceConfig
from trainers.setup.placement import FROZEN, ReplicaPlace
from trainers.setup.run_plan import EnvShare, RunPlan


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


def make_trainer(plan: RunPlan, launcher: Launcher, model: str, store: WeightStore | None) -> AllRanks[TrainerActor]:
    place = plan.placement.replicas["trainer"][0]
    return spawn_trainer(
        launcher,
        model,
        plan.trainer_at_start,
        procs=plan.config.services.trainer.procs,
        store=store,
        store_dtype=plan.engine.dtype,
        environ=_resources(plan.config.services.trainer, place),
        num_hosts=place.num_hosts,
        imports=plan.algorithm.target,
    )


def make_engines(plan: RunPlan, launcher: Launcher, model: str, store: WeightStore) -> Service[PolicyActor]:
    wanted, places = plan.config.services.generator, plan.placement.replicas["generator"]
    return Service(
        actor_class=PolicyActor,
        arguments={"model": model, "settings": plan.engine, "store": store},
        name="generator",
        # One process of ours, whatever its tensor parallel degree: vLLM starts one for each of its GPUs.
        options=replace(_options(wanted, places, plan.deadlines.weights), procs=1),
        launcher=launcher,
    )


def make_environments(
    plan: RunPlan, launcher: Launcher, model: str, engines: ServiceClient[PolicyActor]
) -> dict[str, Service[EnvActor]]:
    """A service for each environment, by label: the death or the load of one is none of another."""
    services, count = {}, plan.config.services.envs.num_replicas
    for number, share in enumerate(plan.environments):
        env, places = share.config.env, plan.placement.replicas["envs"][number * count : (number + 1) * count]
        services[share.label] = Service(
            actor_class=EnvActor,
            arguments={
                "env": env.name,
                "label": share.label,
                "options": env.options,
                "agents": _agents(plan, share, model, engines),
                "limits": env.limits(),
                "on_fault": env.fault_policy(),
                "group_reward": env.group_reward,
            },
            name="-".join(filter(None, ("envs", share.label))),
            options=_options(plan.config.services.envs, places, plan.deadlines.weights),
            launcher=launcher,
        )
    return services


def make_frozen(plan: RunPlan, launcher: Launcher, model: str) -> dict[str, Service[TrainerActor]]:
    """The frozen models that the run needs, as `RunPlan.frozen_models` calls them; no reference if the trainer is its
    own. `model` is the folder of the reference."""
    left = {name: iter(plan.placement.replicas[name]) for name in FROZEN}
    return {
        what: Service(
            actor_class=TrainerActor,
            arguments={
                "model": model if name == "ref_model" else found.path,
                "settings": plan.frozen(settings),
                "is_frozen": True,
            },
            name=what,
            options=_options(settings, places, plan.deadlines.weights),
            launcher=launcher,
        )
        for what, (name, found) in plan.frozen_models.items()
        for settings in (getattr(plan.config.services, name),)
        if (places := [*islice(left[name], settings.num_replicas)])
    }


def _options(service: ReplicasConfig, places: Sequence[ReplicaPlace], start_seconds: float) -> ServiceOptions:
    """How a service is run. The replacement of a replica gets the same GPUs."""
    procs, with_gpus = (service.procs, service.with_gpus) if isinstance(service, ServiceConfig) else (1, False)
    return ServiceOptions(
        procs=procs,
        num_replicas=service.num_replicas,
        with_gpus=with_gpus,
        start_seconds=start_seconds,
        ping_seconds=service.ping_seconds,
        environ=lambda replica: _resources(service, places[replica]),
        host=lambda replica: places[replica].host,
    )


def _agents(plan: RunPlan, share: EnvShare, model: str, policy: ServiceClient[PolicyActor]) -> dict[str, AgentSpec]:
    engines = ActorPolicy(policy)
    asked: Policy = LockstepPolicy(engines) if plan.config.training.deterministic else engines
    evaluation = share.config.evaluation
    rendered = {"model": model, "thinking": plan.config.env.thinking, "tools": plan.config.renderer.tools}
    sampling = {
        "policy": {"temperature": plan.temperature},  # and no top_p, which would bias the ratio
        "evaluated": {"temperature": evaluation.temperature, "top_p": evaluation.top_p},
        "greedy": {"temperature": 0.0},
    }
    agents: dict[str, AgentSpec] = {
        name: ("agents.token_agent:TokenAgent", {**rendered, "policy": asked, **settings})
        for name, settings in sampling.items()
    }
    script = share.config.warmup.expert or "expert"
    if script != "expert" or hasattr(share.factory.env_class, "expert"):
        expert = {"env": share.config.env.name, "script": script, **rendered}
        agents["expert"] = ("agents.scripted:scripted_agent", expert)
    return agents


def _resources(service: ReplicasConfig, place: ReplicaPlace) -> dict[str, str]:
    """Environment variables of a service's processes: their threads, and the GPUs that they see.

    Waiting threads sleep rather than spin: on few cores a spinning thread takes the core of the thread it waits for.
    """
    seen = ",".join(names_of(place.gpus))
    return {"OMP_NUM_THREADS": str(service.threads), "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": seen}
