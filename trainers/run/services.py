"""Starts the processes of a run, and says where each one runs."""

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
from forge_env.registry.registry import env_class
from forge_env.rollout.lockstep import LockstepPolicy
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.calls.answers import unless_gone, within
from forge_env.runtime.calls.client import ServiceClient
from forge_env.runtime.launcher import Launcher, Spawned
from forge_env.runtime.process.network import LOOPBACK
from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.service import Service, ServiceOptions
from forge_env.runtime.weights import WeightStore
from trainers.config import RunConfig, ServiceConfig
from trainers.model.shape import find_shape
from trainers.objective.plugins import names_reference
from trainers.run.reference import ReferenceActor
from trainers.run.startup import Span
from trainers.run.trainer_actor import spawn_trainer
from trainers.setup.deadlines import Deadlines
from trainers.setup.engine import engine_settings
from trainers.setup.placement import Place, find_places


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


async def start_services(
    config: RunConfig, launcher: Launcher, model: str, store: WeightStore, deadlines: Deadlines
) -> Services:
    """Start everything at once, and wait for all but the engines; without an environment, the trainer alone.

    Args:
        config: of the run.
        launcher: that ends everything.
        model: a Hugging Face folder.
        store: prepared and opened here; who made it closes it, after the launcher.
        deadlines: of the starts, and of the engines' pulls.

    Raises:
        UserError: for what an actor finds wrong with the model or the environment.
        ServiceError: when a process dies, or does not start in time.
    """
    if not config.env.name:
        return await _start_trainer(config, launcher, model, deadlines)
    start_seconds = deadlines.weights
    wanted, places = config.services, find_places(config)
    store.prepare(launcher.hosts.address if launcher.hosts else LOOPBACK)

    async def catch_up(engine: Spawned) -> None:
        await services._catch_up(engine)

    async def settle(reference: Spawned) -> None:
        await services._settle(reference)

    policy = Service(
        actor_class=PolicyActor,
        arguments={"model": model, "settings": engine_settings(config, find_shape(model).shape), "store": store},
        name="generator",
        # One process of ours, whatever its tensor parallel degree: vLLM starts one for each of its GPUs.
        options=replace(_options(wanted.generator, places["generator"], start_seconds), procs=1),
        on_ready=catch_up,
        launcher=launcher,
    )
    titan = spawn_trainer(
        launcher,
        model,
        _trainer(config),
        procs=wanted.trainer.procs,
        store=store,
        environ=_resources(wanted.trainer, places["trainer"][0]),
        num_hosts=places["trainer"][0].num_hosts,
    )
    envs = Service(
        actor_class=EnvActor,
        arguments={
            "env": config.env.name,
            "options": config.env.options,
            "agents": _agents(config, model, policy.client),
            "limits": config.env.limits(),
            "on_fault": config.env.fault_policy(),
        },
        name="envs",
        options=_options(wanted.envs, places["envs"], start_seconds),
        launcher=launcher,
    )
    reference = None
    if has_reference(config):
        reference = Service(
            actor_class=ReferenceActor,
            arguments={"model": model, "settings": _reference(config), "store": store},
            name="reference",
            options=_options(wanted.ref_model, places["ref_model"], start_seconds),
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
        pull_seconds=deadlines.weights,
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


def _options(service: ServiceConfig, places: Sequence[Place], start_seconds: float) -> ServiceOptions:
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


async def _start_trainer(config: RunConfig, launcher: Launcher, model: str, deadlines: Deadlines) -> Services:
    trainer = config.services.trainer
    (place,) = find_places(config)["trainer"]
    where: dict[str, Any] = {"environ": _resources(trainer, place), "num_hosts": place.num_hosts}
    titan = spawn_trainer(launcher, model, _trainer(config), procs=trainer.procs, **where)
    await launcher.start("trainer", seconds=deadlines.weights)
    no_engine = asyncio.create_task(asyncio.sleep(0))
    nobody = Service(actor_class=EnvActor, arguments={}, name="envs", launcher=launcher)  # never started
    return Services(
        trainer=titan,
        policy=nobody,
        envs=nobody,
        engine_ready=no_engine,
        guard=launcher.guard,
        pull_seconds=deadlines.weights,
    )


def _trainer(config: RunConfig) -> dict[str, Any]:
    """Arguments of TitanSettings, which cannot be imported here: torchtitan belongs to the trainer's process."""
    training, parallelism = config.training, config.parallelism
    return {
        "learning_rate": training.learning_rate,
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "betas": (0.9, 0.95),
        "seed": training.seed,
        "dtype": "" if training.dtype == "auto" else training.dtype,
        "compile": training.compile,
        "activation_checkpoint": training.activation_checkpoint,
        "keep_logits_gib": training.keep_logits_gib,
        "dp_shard": parallelism.data_parallel_shard_degree,
        "tp": parallelism.tensor_parallel_degree,
        "threads": config.services.trainer.threads,
        "deterministic": training.deterministic,
        "max_tokens_per_micro_batch": training.max_tokens_per_micro_batch,
        "pack_length": training.max_tokens_per_micro_batch if training.packing else 0,
    }


def has_reference(config: RunConfig) -> bool:
    """Whether a run starts a reference model: it has a place for one, and something needs it."""
    return config.services.ref_model.procs > 0 and names_reference(config)


def _reference(config: RunConfig) -> dict[str, Any]:
    """Arguments of TitanReference, which cannot be imported here."""
    training = config.training
    return {
        "dtype": "" if training.dtype == "auto" else training.dtype,
        "threads": config.services.ref_model.threads,
        "max_tokens": training.max_tokens_per_micro_batch,
    }


def _agents(config: RunConfig, model: str, policy: ServiceClient) -> dict[str, AgentSpec]:
    env = env_class(config.env.name)
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
    if hasattr(env, "expert"):
        agents["expert"] = ("agents.scripted:scripted_agent", {"env": config.env.name, "model": model})
    return agents


def _resources(service: ServiceConfig, place: Place) -> dict[str, str]:
    """Environment of a service's processes: their threads, and the GPUs that they see, one for each, or none.

    Threads sleep rather than spin while they wait: on few cores a spinning thread keeps the one that it waits for from
    running.
    """
    seen = ",".join(names_of(place.gpus))
    return {"OMP_NUM_THREADS": str(service.threads), "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": seen}


def placement(config: RunConfig) -> str:
    """Say which services are up, and where each one runs."""

    def where(name: str) -> str:
        service = getattr(config.services, name)
        kind = "GPU" if service.with_gpus else f"CPU, {service.threads} thread{'s' * (service.threads != 1)}"
        replicas = f"{service.num_replicas} of " if service.num_replicas > 1 else ""
        if service.procs == 1:
            return f"{replicas}{name} on {kind}"
        return f"{replicas}{name} on {service.procs} processes, each on {kind}"

    if not config.env.name:
        return f"the trainer is up: {where('trainer')}"
    count = config.services.envs.num_replicas
    envs = "in a process of their own" if count == 1 else f"in {count} processes of their own"
    reference = f" {where('ref_model')};" if has_reference(config) else ""
    return (
        "trainer, environments and weight store are up, the engine is starting: "
        f"{where('generator')}; {where('trainer')};{reference} environments {envs}"
    )
