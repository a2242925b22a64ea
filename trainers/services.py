"""Starts the processes of a run, and says where each one runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from agents.vllm_engine import EngineSettings
from agents.vllm_policy import ActorPolicy, PolicyActor
from envs.actor import AgentSpec, EnvActor
from forge_env.registry import env_class
from forge_env.runtime import weights
from forge_env.runtime.launcher import Launcher
from trainers.actor import TrainerActor
from trainers.config import RunConfig, ServiceConfig

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

    async def stop_waiting(self) -> None:
        """Take back the wait for the engine, where the run ends before it is up."""
        self.engine_ready.cancel()
        await asyncio.gather(self.engine_ready, return_exceptions=True)


async def start_services(config: RunConfig, launcher: Launcher, model: str) -> Services:
    """Start everything at once, and wait for all but the engine.

    Raises:
        UserError: for what an actor finds wrong with the model or the environment.
        ServiceError: when a process dies, or does not start in time.
    """
    generator, trainer = config.services.generator, config.services.trainer
    gpus = iter(range(2))
    policy = launcher.spawn(
        "generator", PolicyActor, environ=_resources(generator, gpus), model=model, settings=_engine(config)
    )
    titan = launcher.spawn(
        "trainer", TrainerActor, environ=_resources(trainer, gpus), model=model, settings=_trainer(config)
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
    store = launcher.processes("store")
    engine_ready = asyncio.create_task(launcher.start("generator"))
    services = Services(trainer=titan, policy=policy, envs=envs, engine_ready=engine_ready, guard=launcher.guard)
    try:
        async with asyncio.TaskGroup() as tasks:
            for name in ("trainer", "envs", "store"):
                tasks.create_task(launcher.start(name))
            tasks.create_task(weights.open_store(store))
    except BaseException:
        await services.stop_waiting()
        raise
    return services


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
    training = config.training
    return {
        "learning_rate": training.learning_rate,
        "max_grad_norm": training.max_grad_norm,
        "betas": (0.9, 0.95),
        "seed": training.seed,
        "threads": config.services.trainer.threads,
        "max_tokens_per_micro_batch": training.max_tokens_per_micro_batch,
    }


def _agents(config: RunConfig, model: str, policy: Any) -> dict[str, AgentSpec]:
    env = env_class(config.env.name)
    sampled = {"model": model, "policy": ActorPolicy(policy), "temperature": config.training.temperature}
    agents: dict[str, AgentSpec] = {"policy": ("agents.token_agent:TokenAgent", sampled)}
    if hasattr(env, "expert"):
        agents["expert"] = ("agents.scripted:scripted_agent", {"env": config.env.name, "model": model})
    return agents


def _resources(service: ServiceConfig, gpus: Iterator[int]) -> dict[str, str]:
    """Environment of a service's process: its threads, and the one GPU that it sees, or none.

    Threads sleep rather than spin while they wait: on few cores a spinning thread keeps the one that it waits for from
    running.
    """
    gpu = str(next(gpus)) if service.with_gpus else ""
    return {"OMP_NUM_THREADS": str(service.threads), "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": gpu}


def placement(config: RunConfig) -> str:
    """Say where each service runs."""

    def where(name: str) -> str:
        service = getattr(config.services, name)
        kind = "GPU" if service.with_gpus else f"CPU, {service.threads} thread{'s' * (service.threads != 1)}"
        return f"{name} on {kind}"

    return f"{where('generator')}; {where('trainer')}; environments in a process of their own"
