"""Starts the processes of a run, and says where each one runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agents.generator.policy import ActorPolicy, PolicyActor
from envs.actor import AgentSpec, EnvActor
from forge_env.core.errors import ServiceError
from forge_env.core.protocols import Policy
from forge_env.rollout.lockstep import LockstepPolicy
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.calls import unless_gone, within
from forge_env.runtime.client import ServiceClient
from forge_env.runtime.gpus import names_of
from forge_env.runtime.launcher import Launcher, Spawned
from forge_env.runtime.ranks import LOOPBACK
from forge_env.runtime.service import Service, ServiceOptions
from forge_env.runtime.weights import WeightStore
from trainers.config import ServiceConfig
from trainers.run.reference import ReferenceActor
from trainers.run.startup import Span
from trainers.run.trainer_actor import spawn_trainer
from trainers.setup.placement import ReplicaPlace
from trainers.setup.run_plan import RunPlan


@dataclass(slots=True, kw_only=True)
class Services:
    """Handles of a run's actors."""

    trainer: Any
    policy: Service
    envs: Service
    engine_ready: asyncio.Task[None]
    """Done when the engines are up; the warm-up needs none, and they are by far the slowest to start."""
    guard: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]
    """Runs work until it ends or a process dies that nothing replaces."""
    reference: Service | None = None
    """The reference model; None where nothing needs one."""
    pull_seconds: float
    """Deadline of an engine's taking new weights over."""
    published: int = -1
    """The newest version of the weights in the store; a new engine is given it before it is put to use."""
    settle_reference: Callable[[Any], Awaitable[None]] | None = None
    """Gives a reference model that has been replaced its weights."""

    async def stop_waiting(self) -> None:
        """Take back the wait for the engine, where the run ends before it is up."""
        self.engine_ready.cancel()
        await asyncio.gather(self.engine_ready, return_exceptions=True)

    @property
    def replaced(self) -> int:
        """Processes that died or hung, and were replaced."""
        return sum(len(service.deaths) for service in (self.policy, self.envs, self.reference) if service)

    async def started(self) -> dict[str, list[Mapping[str, Span]]]:
        """What the actors of each service that is up say of their starts, by the names that people know them by."""
        services = {"environments": self.envs, "reference model": self.reference}
        if self.engine_ready.done():
            services["engine"] = self.policy
        found = {}
        with suppress(ServiceError):  # who dies meanwhile is noticed elsewhere
            found["trainer"] = [await within(10.0, self.trainer.started.call_one(), "the trainer")]
            for name, service in services.items():
                found[name] = await service.deadline(10.0).started.fanout() if service else []
        return found

    async def progress(self) -> object:
        """How far engines and environments have come: it differs from the last time where anything has moved.

        A replica that is being started is movement: its start has a deadline of its own.
        """
        if self.policy.is_starting or self.envs.is_starting:
            return object()
        with suppress(ServiceError):  # who does not answer is noticed by its ping, and does not move
            uses = await self.policy.deadline(10.0).use.fanout()
            ended = await self.envs.deadline(10.0).ended.fanout()
            return self.replaced, [use.steps for use in uses], ended
        return None

    async def _catch_up(self, engine: Spawned) -> None:
        """Give a new engine the weights that the others have. Nothing is awaited after the last look at `published`."""
        version = -1
        while version != self.published:
            version = self.published
            try:
                pull = engine.handle.pull.call_one(version, self.pull_seconds)
                await unless_gone(within(self.pull_seconds, pull, "the new engine"), engine.dead)
            except ServiceError:
                if version == self.published:  # otherwise there is a newer one, and this one may be forgotten
                    raise

    async def _settle(self, reference: Spawned) -> None:
        if self.settle_reference is not None:
            await unless_gone(self.settle_reference(reference.handle), reference.dead)


async def start_services(plan: RunPlan, launcher: Launcher, model: str, store: WeightStore) -> Services:
    """Start everything at once, and wait for all but the engines; without an environment, the trainer alone.

    Args:
        plan: of the run.
        launcher: that ends everything.
        model: a Hugging Face folder.
        store: of the plan; prepared and opened here, and closed by the caller after the launcher.

    Raises:
        UserError: for what an actor finds wrong with the model or the environment.
        ServiceError: when a process dies, or does not start in time.
    """
    if plan.environment is None:
        return await _start_trainer(plan, launcher, model)
    start_seconds = plan.deadlines.weights
    config, replicas = plan.config, plan.placement.replicas
    wanted = config.services
    store.prepare(launcher.hosts.address if launcher.hosts else LOOPBACK)

    async def catch_up(engine: Spawned) -> None:
        await services._catch_up(engine)

    async def settle(reference: Spawned) -> None:
        await services._settle(reference)

    policy = Service(
        actor_class=PolicyActor,
        arguments={"model": model, "settings": plan.engine, "store": store},
        name="generator",
        # One process of ours, whatever its tensor parallel degree: vLLM starts one for each of its GPUs.
        options=replace(_options(wanted.generator, replicas["generator"], start_seconds), procs=1),
        on_ready=catch_up,
        launcher=launcher,
    )
    titan = spawn_trainer(
        launcher,
        model,
        plan.trainer,
        procs=wanted.trainer.procs,
        store=store,
        environ=_resources(wanted.trainer, replicas["trainer"][0]),
        num_hosts=replicas["trainer"][0].num_hosts,
    )
    envs = Service(
        actor_class=EnvActor,
        arguments={
            "env": config.env.name,
            "options": config.env.options,
            "agents": _agents(plan, model, policy.client),
            "limits": plan.limits,
            "on_fault": config.env.fault_policy(),
        },
        name="envs",
        options=_options(wanted.envs, replicas["envs"], start_seconds),
        launcher=launcher,
    )
    reference = None
    if plan.placement.has_reference:
        reference = Service(
            actor_class=ReferenceActor,
            arguments={"model": model, "settings": plan.reference, "store": store},
            name="reference",
            options=_options(wanted.ref_model, replicas["ref_model"], start_seconds),
            on_ready=settle,
            launcher=launcher,
        )
    processes = launcher.processes("store", ForgeActor) if store.needs_process else None
    services = Services(
        trainer=titan,
        policy=policy,
        envs=envs,
        engine_ready=asyncio.create_task(policy.start()),
        guard=launcher.guard,
        reference=reference,
        pull_seconds=plan.deadlines.weights,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(launcher.start("trainer", seconds=start_seconds))
            tasks.create_task(envs.start())
            if reference is not None:
                tasks.create_task(reference.start())
            if processes is not None:
                tasks.create_task(launcher.start("store", seconds=start_seconds))
            tasks.create_task(store.open(processes))
    except BaseException:
        await services.stop_waiting()
        raise
    return services


def _options(service: ServiceConfig, places: Sequence[ReplicaPlace], start_seconds: float) -> ServiceOptions:
    """How a service is run; the GPUs of each replica are its own, and those of its replacement."""
    return ServiceOptions(
        procs=service.procs,
        num_replicas=service.num_replicas,
        with_gpus=service.with_gpus,
        start_seconds=start_seconds,
        ping_seconds=service.ping_seconds,
        environ=lambda replica: _resources(service, places[replica]),
        host=lambda replica: places[replica].host,
    )


async def _start_trainer(plan: RunPlan, launcher: Launcher, model: str) -> Services:
    trainer = plan.config.services.trainer
    (place,) = plan.placement.replicas["trainer"]
    where: dict[str, Any] = {"environ": _resources(trainer, place), "num_hosts": place.num_hosts}
    titan = spawn_trainer(launcher, model, plan.trainer, procs=trainer.procs, **where)
    await launcher.start("trainer", seconds=plan.deadlines.weights)
    no_engine = asyncio.create_task(asyncio.sleep(0))
    nobody = Service(actor_class=EnvActor, arguments={}, name="envs", launcher=launcher)  # never started
    return Services(
        trainer=titan,
        policy=nobody,
        envs=nobody,
        engine_ready=no_engine,
        guard=launcher.guard,
        pull_seconds=plan.deadlines.weights,
    )


def _agents(plan: RunPlan, model: str, policy: ServiceClient) -> dict[str, AgentSpec]:
    assert plan.environment is not None
    config, environment = plan.config, plan.environment.env_class
    asked: Policy = ActorPolicy(policy)
    if config.training.deterministic:
        asked = LockstepPolicy(ActorPolicy(policy))
    evaluation = config.evaluation
    sampling = {
        "policy": {"temperature": config.temperature},  # and no top_p, which would bias the ratio
        "evaluated": {"temperature": evaluation.temperature, "top_p": evaluation.top_p},
        "greedy": {"temperature": 0.0},
    }
    agents: dict[str, AgentSpec] = {
        name: ("agents.token_agent:TokenAgent", {"model": model, "policy": asked, **own})
        for name, own in sampling.items()
    }
    if hasattr(environment, "expert"):
        agents["expert"] = ("agents.scripted:scripted_agent", {"env": config.env.name, "model": model})
    return agents


def _resources(service: ServiceConfig, place: ReplicaPlace) -> dict[str, str]:
    """Environment of a service's processes: their threads, and the GPUs that they see, one for each, or none.

    Threads sleep rather than spin while they wait: on few cores a spinning thread keeps the one that it waits for from
    running.
    """
    seen = ",".join(names_of(place.gpus))
    return {"OMP_NUM_THREADS": str(service.threads), "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": seen}
