"""Starts the processes of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agents.generator.policy import ActorPolicy, PolicyActor
from envs.actors.env import AgentSpec, EnvActor
from forge_env.core.errors import ServiceError
from forge_env.core.protocols import Policy
from forge_env.rollout.lockstep import LockstepPolicy
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.calls.answers import unless_gone, within
from forge_env.runtime.calls.client import ServiceClient
from forge_env.runtime.launcher import Launcher, Spawned
from forge_env.runtime.process.network import LOOPBACK
from forge_env.runtime.process.ranks import AllRanks
from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.service import Service, ServiceOptions
from forge_env.runtime.weights import WeightStore
from trainers.algorithm import check_unchanged
from trainers.metrics.timeline import Timeline
from trainers.run.delivery import make_delivery
from trainers.run.reference import ReferenceActor
from trainers.run.startup import Span, Startup
from trainers.run.trainer_actor import TrainerActor, spawn_trainer
from trainers.run.weight_sync import WeightSync
from trainers.settings.services import ReplicasConfig, ServiceConfig
from trainers.setup.placement import ReplicaPlace
from trainers.setup.run_plan import RunPlan
from trainers.titan.settings import TitanSettings

OnReady = Callable[[Spawned], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Services:
    """Handles of a run's actors."""

    trainer: AllRanks[TrainerActor]
    policy: Service[PolicyActor]
    envs: Service[EnvActor]
    weights: WeightSync
    engine_ready: asyncio.Task[None]
    """Done when the engines are up. They are the slowest to start, and the warm-up does not need them."""
    guard: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]
    """Runs work until it ends or a process dies that nothing replaces."""
    reference: Service[ReferenceActor] | None = None
    """The reference model; None where nothing needs one."""
    settle_reference: Callable[[Spawned], Awaitable[None]] | None = None
    """Gives a reference model that has been replaced its weights."""

    async def stop_waiting(self) -> None:
        """Cancel the wait for the engine, if the run ends before it is up."""
        self.engine_ready.cancel()
        await asyncio.gather(self.engine_ready, return_exceptions=True)

    @property
    def replaced(self) -> int:
        """Processes that died or hung, and were replaced."""
        return sum(len(service.deaths) for service in (self.policy, self.envs, self.reference) if service)

    async def started(self) -> dict[str, list[Mapping[str, Span]]]:
        """The start-up phases of the actors of each service that is up, by display name."""
        services: dict[str, Service[Any] | None] = {"environments": self.envs, "reference model": self.reference}
        if self.engine_ready.done():
            services["engine"] = self.policy
        starts: dict[str, list[Mapping[str, Span]]] = {}
        with suppress(ServiceError):  # a death meanwhile is handled elsewhere
            starts["trainer"] = [await within(10.0, self.trainer.call_one(TrainerActor.started), "the trainer")]
            for name, service in services.items():
                starts[name] = [*await service.deadline(10.0).fanout(ForgeActor.started)] if service else []
        return starts

    async def progress(self) -> object:
        """A value that changes whenever engines or environments make progress.

        A replica that is being started counts as progress: its start has a deadline of its own.
        """
        if self.policy.is_starting or self.envs.is_starting:
            return object()
        with suppress(ServiceError):  # a replica that does not answer makes no progress; its ping handles it
            uses = await self.policy.deadline(10.0).fanout(PolicyActor.use)
            ended = await self.envs.deadline(10.0).fanout(EnvActor.ended)
            return self.replaced, [use.steps for use in uses], ended
        return None

    async def _settle(self, reference: Spawned) -> None:
        if self.settle_reference is not None:
            await unless_gone(self.settle_reference(reference), reference.dead)


async def start_services(
    plan: RunPlan, launcher: Launcher, model: str, store: WeightStore, startup: Startup, timeline: Timeline
) -> Services:
    """Start everything at once, and wait for all but the engines; without an environment, the trainer alone.

    Args:
        plan: of the run.
        launcher: that ends everything.
        model: a Hugging Face folder.
        store: of the plan; prepared and opened here, and closed by the caller after the launcher.
        startup: records the first update of the weights.
        timeline: records every update.

    Raises:
        UserError: for what an actor finds wrong with the model or the environment.
        ServiceError: when a process dies, or does not start in time.
    """
    if plan.environment is None:
        return await _start_trainer(plan, launcher, model, startup, timeline)
    start_seconds = plan.deadlines.weights
    wanted, replicas = plan.services, plan.placement.replicas
    store.prepare(launcher.hosts.address if launcher.hosts else LOOPBACK)

    async def catch_up(engine: Spawned) -> None:
        await services.weights.catch_up(engine)

    async def settle(reference: Spawned) -> None:
        await services._settle(reference)

    policy = _engines(plan, launcher, model, store, on_ready=catch_up)
    titan = spawn_trainer(
        launcher,
        model,
        _trainer_settings(plan),
        procs=wanted.trainer.procs,
        store=store,
        store_dtype=plan.engine.dtype,
        environ=_resources(wanted.trainer, replicas["trainer"][0]),
        num_hosts=replicas["trainer"][0].num_hosts,
        imports=plan.own_algorithm.target if plan.own_algorithm else "",
    )
    envs = _environments(plan, launcher, model, policy.client)
    reference = _references(plan, launcher, model, on_ready=settle) if plan.placement.has_reference else None
    processes = launcher.processes("store", ForgeActor) if store.needs_process else None
    engine_ready = asyncio.create_task(_named(startup, "starting the engine", policy.start()))
    services = Services(
        trainer=titan,
        policy=policy,
        envs=envs,
        weights=_weight_sync(plan, titan, policy, engine_ready, startup, timeline),
        engine_ready=engine_ready,
        guard=launcher.guard,
        reference=reference,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            trainer = launcher.start("trainer", seconds=start_seconds)
            tasks.create_task(_named(startup, "starting the trainer", trainer))
            tasks.create_task(_named(startup, "starting the environments", envs.start()))
            if reference is not None:
                tasks.create_task(reference.start())
            if processes is not None:
                tasks.create_task(launcher.start("store", seconds=start_seconds))
            tasks.create_task(store.open(processes))
        if plan.own_algorithm:
            check_unchanged(plan.own_algorithm)
        await services.weights.begin()
    except BaseException:
        await services.stop_waiting()
        raise
    return services


async def _named(startup: Startup, what: str, start: Awaitable[None]) -> None:
    with startup.waiting(what):
        await start


def _engines(
    plan: RunPlan, launcher: Launcher, model: str, store: WeightStore, *, on_ready: OnReady
) -> Service[PolicyActor]:
    wanted, places = plan.services.generator, plan.placement.replicas["generator"]
    return Service(
        actor_class=PolicyActor,
        arguments={"model": model, "settings": plan.engine, "store": store},
        name="generator",
        # One process of ours, whatever its tensor parallel degree: vLLM starts one for each of its GPUs.
        options=replace(_options(wanted, places, plan.deadlines.weights), procs=1),
        on_ready=on_ready,
        launcher=launcher,
    )


def _environments(
    plan: RunPlan, launcher: Launcher, model: str, policy: ServiceClient[PolicyActor]
) -> Service[EnvActor]:
    return Service(
        actor_class=EnvActor,
        arguments={
            "env": plan.env.name,
            "options": plan.env.options,
            "agents": _agents(plan, model, policy),
            "limits": plan.limits,
            "on_fault": plan.env.fault_policy(),
        },
        name="envs",
        options=_options(plan.services.envs, plan.placement.replicas["envs"], plan.deadlines.weights),
        launcher=launcher,
    )


def _references(plan: RunPlan, launcher: Launcher, model: str, *, on_ready: OnReady) -> Service[ReferenceActor]:
    wanted, places = plan.services.ref_model, plan.placement.replicas["ref_model"]
    return Service(
        actor_class=ReferenceActor,
        arguments={"model": model, "settings": plan.reference},
        name="reference",
        options=_options(wanted, places, plan.deadlines.weights),
        on_ready=on_ready,
        launcher=launcher,
    )


def _options(service: ReplicasConfig, places: Sequence[ReplicaPlace], start_seconds: float) -> ServiceOptions:
    """How a service is run; the GPUs of each replica are its own, and those of its replacement."""
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


async def _start_trainer(
    plan: RunPlan, launcher: Launcher, model: str, startup: Startup, timeline: Timeline
) -> Services:
    trainer = plan.services.trainer
    (place,) = plan.placement.replicas["trainer"]
    where: dict[str, Any] = {"environ": _resources(trainer, place), "num_hosts": place.num_hosts}
    titan = spawn_trainer(launcher, model, _trainer_settings(plan), procs=trainer.procs, **where)
    await _named(startup, "starting the trainer", launcher.start("trainer", seconds=plan.deadlines.weights))
    no_engine = asyncio.create_task(asyncio.sleep(0))
    policy = Service(actor_class=PolicyActor, arguments={}, name="generator", launcher=launcher)  # never started
    envs = Service(actor_class=EnvActor, arguments={}, name="envs", launcher=launcher)  # nor is this one
    return Services(
        trainer=titan,
        policy=policy,
        envs=envs,
        weights=_weight_sync(plan, titan, policy, no_engine, startup, timeline),
        engine_ready=no_engine,
        guard=launcher.guard,
    )


def _trainer_settings(plan: RunPlan) -> TitanSettings:
    """An engine that sleeps while the trainer steps is awake while it loads: the memory of a step is not there then."""
    return replace(plan.trainer, compile_full=not plan.engine.sleep)


def _weight_sync(
    plan: RunPlan,
    trainer: AllRanks[TrainerActor],
    policy: Service[PolicyActor],
    engine_ready: asyncio.Task[None],
    startup: Startup,
    timeline: Timeline,
) -> WeightSync:
    return WeightSync(
        trainer=trainer,
        policy=policy,
        engine_ready=engine_ready,
        seconds=plan.deadlines.weights,
        staleness=plan.staleness,
        startup=startup,
        timeline=timeline,
        delivery=make_delivery(plan),
        sleeps=plan.engine.sleep and plan.environment is not None,
    )


def _agents(plan: RunPlan, model: str, policy: ServiceClient[PolicyActor]) -> dict[str, AgentSpec]:
    assert plan.environment is not None
    engines = ActorPolicy(policy)
    asked: Policy = LockstepPolicy(engines) if plan.training.deterministic else engines
    evaluation, thinking = plan.evaluation, plan.env.thinking
    sampling = {
        "policy": {"temperature": plan.temperature},  # and no top_p, which would bias the ratio
        "evaluated": {"temperature": evaluation.temperature, "top_p": evaluation.top_p},
        "greedy": {"temperature": 0.0},
    }
    agents: dict[str, AgentSpec] = {
        name: ("agents.token_agent:TokenAgent", {"model": model, "policy": asked, "thinking": thinking, **settings})
        for name, settings in sampling.items()
    }
    if hasattr(plan.environment.env_class, "expert"):
        expert = {"env": plan.env.name, "model": model, "thinking": thinking}
        agents["expert"] = ("agents.scripted:scripted_agent", expert)
    return agents


def _resources(service: ReplicasConfig, place: ReplicaPlace) -> dict[str, str]:
    """Environment variables of a service's processes: their threads, and the GPUs that they see.

    Waiting threads sleep rather than spin: on few cores a spinning thread takes the core of the thread it waits for.
    """
    seen = ",".join(names_of(place.gpus))
    return {"OMP_NUM_THREADS": str(service.threads), "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": seen}
