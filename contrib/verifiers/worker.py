"""The script that runs in the interpreter of verifiers: `python -P worker.py list|serve SETTINGS`.

"list" writes one object of JSON about an environment and its tasks. "serve" loads the environment and plays rollouts,
many at once: it reads requests as lines of JSON, {"id", "data", "base_url", "token"} or {"cancel": id}, and writes a
line {"id", ...} at the end of each. SETTINGS is an object of JSON: id, config, harness, runtime, folder, most.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import logging
import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

CHAT = "forge_env_chat"
MODEL = "policy"
ENDLESS = 2_000
"""Tasks that are read of an environment without an end."""


class Refused(Exception):
    """A mistake of the user: one sentence."""


def main(what: str, settings: dict[str, Any]) -> int:
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what environments print is not an answer
    logging.disable(logging.INFO)
    try:
        if importlib.util.find_spec("verifiers") is None or importlib.util.find_spec("verifiers.v1") is None:
            channel.write(json.dumps({"missing": "it is not installed, or older than that"}) + "\n")
            return 1
        environment = _Environment(settings)
        if what == "list":
            channel.write(json.dumps(environment.task_list(settings["most"])) + "\n")
        else:
            asyncio.run(_serve(environment, channel))
    except Refused as refusal:
        channel.write(json.dumps({"refused": str(refusal)}) + "\n")
        return 1
    except Exception as error:
        channel.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        raise
    return 0


class _Environment:
    """An environment of verifiers, as the settings ask for it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils import loaders

        _add_chat_harness()
        self.vf, self.id = vf, settings["id"]
        try:
            self.config = _resolve(vf, loaders, settings)
            self.env = vf.load_environment(self.config)
        except (ModuleNotFoundError, ValueError, TypeError, AttributeError) as error:
            raise Refused(f"verifiers cannot load {self.id!r}: {' '.join(str(error).split())}") from error
        self.role = _policy_role(vf, self.config)
        _check_harness(vf, self.config, self.role, settings)
        _keep_rollouts_in(settings.get("folder"))

    @property
    def facts(self) -> dict[str, Any]:
        import verifiers

        role = getattr(self.config, self.role)
        return {"version": verifiers.__version__, "harness": role.harness.id, "max_turns": role.max_turns}

    def task_list(self, most: int) -> dict[str, Any]:
        taskset = self.env.taskset
        number = most if taskset.bounded else min(most, ENDLESS)
        tasks = [
            {"key": task.key, "data": task.data.model_dump(mode="json", exclude_defaults=True)}
            for task in itertools.islice(taskset, number)
        ]
        return {**self.facts, "tasks": tasks}

    async def play(self, request: dict[str, Any]) -> dict[str, Any]:
        task_class = type(self.env.taskset).task_type()
        task = task_class(task_class.data_type().model_validate(request["data"]), self.config.taskset.task)
        variable = f"FORGE_ENV_API_KEY_{request['id']}"  # a name that verifiers does not pass on to programs
        os.environ[variable] = request["token"]
        try:
            client = self.vf.EvalClientConfig(base_url=request["base_url"], api_key_var=variable)
            episode = await self.env.run_episode(task, self.vf.ModelContext(model=MODEL, client=client))
        finally:
            os.environ.pop(variable, None)
        return _result(episode, self.role)


def _add_chat_harness() -> None:
    spec = importlib.util.spec_from_file_location(CHAT, Path(__file__).with_name("chat_harness.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[CHAT] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _resolve(vf: Any, loaders: Any, settings: dict[str, Any]) -> Any:
    """The environment's configuration: its own, then the user's, and then our defaults."""
    raw: dict[str, Any] = json.loads(json.dumps(settings["config"]))
    raw["taskset"] = {**raw.get("taskset", {}), "id": settings["id"]}
    fields = loaders.env_config_type(settings["id"], raw.get("id", "")).model_fields
    roles = {name: field.default for name, field in fields.items() if isinstance(field.default, vf.AgentConfig)}
    brings_harness = vf.default_harness_id(settings["id"]) == settings["id"]
    for name, default in roles.items():
        role = raw.setdefault(name, {})
        if settings["harness"]:
            role["harness"] = {**role.get("harness", {}), "id": settings["harness"]}
        elif "harness" not in role and default.harness is None and not brings_harness:
            role["harness"] = {"id": CHAT}
        if settings["runtime"]:
            role["runtime"] = {**role.get("runtime", {}), "type": settings["runtime"]}
        elif "runtime" not in role and default.runtime == vf.AgentConfig().runtime:
            role["runtime"] = {"type": "subprocess"}
    config = loaders.resolve_env_config(raw)
    for name, harness in config.agent_harnesses().items():
        role = getattr(config, name)
        if role.harness is None:
            role.harness = harness
    return config


def _policy_role(vf: Any, config: Any) -> str:
    """The role that the trained model plays: the one without an endpoint of its own."""
    roles = {name: role for name, role in config if isinstance(role, vf.AgentConfig)}
    free = [name for name, role in roles.items() if role.client is None]
    if len(free) != 1:
        raise Refused(
            f"the environment has the roles {', '.join(roles)}, and {len(free)} of them have no endpoint of their own, "
            'where it must be one, which the model plays: set "client" of the others in the option config'
        )
    return free[0]


def _check_harness(vf: Any, config: Any, role: str, settings: dict[str, Any]) -> None:
    """Refuse what would let the model run commands on this machine without anybody's asking for it."""
    agent = getattr(config, role)
    harness = vf.load_harness(agent.harness)
    is_asked_for = settings["runtime"] or "runtime" in settings["config"].get(role, {})
    if harness.EXECUTES_CODE and agent.runtime.type == "subprocess" and not is_asked_for:
        raise Refused(
            f"the harness {agent.harness.id!r} lets the model run commands on this machine: name where with the option "
            "runtime, docker for example, or runtime=subprocess for this machine itself"
        )


def _keep_rollouts_in(folder: str | None) -> None:
    """Let rollouts have their folders in a place that is cleared even if this process is killed."""
    from verifiers.v1.runtimes import subprocess

    if folder and hasattr(subprocess, "CACHE_DIR"):
        subprocess.CACHE_DIR = Path(folder)


def _result(episode: Any, role: str) -> dict[str, Any]:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors or not episode.ok:
        last = errors[-1] if errors else None
        return {"failed": f"{last.type}: {last.message}" if last else "the rollout failed, and gave no reason"}
    traces = [trace for trace in episode.traces if trace.agent.name in (role, None, "")] or episode.traces
    if len(traces) != 1:
        return {"failed": f"the model played {len(traces)} rollouts in one episode, of which none is its reward"}
    trace = traces[0]
    rewards = {name: None if reward is None else reward.value for name, reward in trace.rewards.items()}
    names = [name for name, value in {**rewards, **trace.metrics}.items() if value is None]
    if names:
        return {"failed": f"{', '.join(names)} was not scored"}
    return {
        "reward": trace.reward,
        "rewards": rewards,
        "metrics": trace.metrics,
        "stop_condition": trace.stop_condition,
        "truncated": bool(trace.is_truncated or trace.is_timeout),
        "info": json.loads(json.dumps(trace.info, default=str)),
    }


async def _answer(number: int, rollout: Awaitable[dict[str, Any]]) -> str:
    """The line of a rollout's result, in which NumPy's numbers are numbers; or of its failure."""
    try:
        return json.dumps({"id": number, **await rollout}, default=float)
    except asyncio.CancelledError:
        return json.dumps({"id": number, "failed": "the rollout was cancelled"})
    except Exception as error:
        return json.dumps({"id": number, "failed": f"{type(error).__name__}: {error}"})


async def _serve(environment: _Environment, channel: Any) -> None:
    """Play the rollouts that standard input asks for, until it ends."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=2**26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: dict[int, asyncio.Task[None]] = {}

    async def play(request: dict[str, Any]) -> None:
        answer = await _answer(request["id"], environment.play(request))
        running.pop(request["id"], None)
        channel.write(answer + "\n")

    async with environment.env.serving():
        channel.write(json.dumps({"ready": environment.facts}) + "\n")
        while line := await reader.readline():
            request = json.loads(line)
            if "cancel" not in request:
                running[request["id"]] = asyncio.create_task(play(request))
            elif (task := running.get(request["cancel"])) is not None:
                task.cancel()
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
