"""Starts the processes of a run, and says where each one runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from agents.vllm_engine import EngineSettings
from agents.vllm_policy import ActorPolicy, PolicyActor
from envs.actor import AgentSpec, EnvActor
from forge_env.registry import env_class
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.weights import WeightStore
from trainers.actor import spawn_trainer
from trainers.config import RunConfig, ServiceConfig
from trainers.own_parts import names_reference
from trainers.reference import ReferenceActor

CONCURRENCY = 64  # episodes in flight in an evaluation; the engine takes twice as many requests
GATHER_S = 0.015  # of an engine on CPU, see EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Handles of a run's actors."""

    trainer: Any
    policy: Any
    envs: Any
    engine_ready: asyncio.Task[None]
    """Done when the engine is up; the warm-up needs no engine, and the engine is by far the slowest to start."""
    guard: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]
    """Runs work until it ends or a process dies."""
    reference: Any = None
    """The reference model; None where nothing needs one."""

    async def stop_waiting(self) -> None:
        """Take back the wait for the engine, where the run ends before it is up."""
        self.engine_ready.cancel()
        await asyncio.gather(self.engine_ready, return_exceptions=True)


async def start_services(config: RunConfig, launcher: Launcher, model: str, store: WeightStore) -> Services:
    """Start everything at once, and wait for all but the engine; without an environment, the trainer alone.

    Args:
        store: opened here; who made it closes it, after the launcher.

    Raises:
        UserError: for what an actor finds wrong with the model or the environment.
        ServiceError: when a process dies, or does not start in time.
    """
    generator, trainer = config.services.generator, config.services.trainer
    if not config.env.name:
        return await _start_trainer(config, launcher, model)
    gpus = itertools.count()
    policy = launcher.spawn(
        "generator",
        PolicyActor,
        environ=_resources(generator, gpus),
        model=model,
        settings=_engine(config),
        store=store,
    )
    titan = spawn_trainer(
        launcher, model, _trainer(config), procs=trainer.procs, store=store, environ=_resources(trainer, gpus)
    )
    agents = _agents(config, model, policy)
    envs = launcher.spawn(
        "envs",
        EnvActor,
        env=config.env.name,
        options=config.env.options,
        agents=agents,
        limits=config.env.limits(),
        on_fault=config.env.fault_policy(),
    )
    waited_for = ["trainer", "envs"]
    reference = None
    if has_reference(config):
        waited_for.append("reference")
        reference = launcher.spawn(
            "reference",
            ReferenceActor,
            environ=_resources(config.services.ref_model, gpus),
            model=model,
            settings=_reference(config),
            store=store,
        )
    processes = None
    if store.needs_process:
        waited_for.append("store")
        processes = launcher.processes("store")
    engine_ready = asyncio.create_task(launcher.start("generator"))
    services = Services(
        trainer=titan,
        policy=policy,
        envs=envs,
        engine_ready=engine_ready,
        guard=launcher.guard,
        reference=reference,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            for name in waited_for:
                tasks.create_task(launcher.start(name))
            tasks.create_task(store.open(processes))
    except BaseException:
        await services.stop_waiting()
        raise
    return services


async def _start_trainer(config: RunConfig, launcher: Launcher, model: str) -> Services:
    trainer = config.services.trainer
    environ = _resources(trainer, itertools.count())
    titan = spawn_trainer(launcher, model, _trainer(config), procs=trainer.procs, environ=environ)
    await launcher.start("trainer")
    no_engine = asyncio.create_task(asyncio.sleep(0))
    return Services(trainer=titan, policy=None, envs=None, engine_ready=no_engine, guard=launcher.guard)


def _engine(config: RunConfig) -> EngineSettings:
    on_gpu = config.services.generator.with_gpus
    return EngineSettings(
        max_model_len=config.env.max_tokens,
        max_requests=2 * CONCURRENCY,
        dtype="bfloat16" if on_gpu else "float32",
        seed=config.training.seed,
        gather_s=0.0 if on_gpu else GATHER_S,
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
        "dp_shard": parallelism.data_parallel_shard_degree,
        "tp": parallelism.tensor_parallel_degree,
        "threads": config.services.trainer.threads,
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


def _agents(config: RunConfig, model: str, policy: Any) -> dict[str, AgentSpec]:
    env = env_class(config.env.name)
    sampled = {"model": model, "policy": ActorPolicy(policy), "temperature": config.temperature}
    agents: dict[str, AgentSpec] = {"policy": ("agents.token_agent:TokenAgent", sampled)}
    if hasattr(env, "expert"):
        agents["expert"] = ("agents.scripted:scripted_agent", {"env": config.env.name, "model": model})
    return agents


def _resources(service: ServiceConfig, gpus: Iterator[int]) -> dict[str, str]:
    """Environment of a service's processes: their threads, and the GPUs that they see, one for each, or none.

    Threads sleep rather than spin while they wait: on few cores a spinning thread keeps the one that it waits for from
    running.
    """
    seen = ",".join(str(next(gpus)) for _ in range(service.procs)) if service.with_gpus else ""
    return {"OMP_NUM_THREADS": str(service.threads), "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": seen}


def placement(config: RunConfig) -> str:
    """Say which services are up, and where each one runs."""

    def where(name: str) -> str:
        service = getattr(config.services, name)
        kind = "GPU" if service.with_gpus else f"CPU, {service.threads} thread{'s' * (service.threads != 1)}"
        if service.procs == 1:
            return f"{name} on {kind}"
        return f"{name} on {service.procs} processes, each on {kind}"

    if not config.env.name:
        return f"the trainer is up: {where('trainer')}"
    reference = f" {where('ref_model')};" if has_reference(config) else ""
    return (
        "trainer, environments and weight store are up, the engine is starting: "
        f"{where('generator')}; {where('trainer')};{reference} environments in a process of their own"
    )
