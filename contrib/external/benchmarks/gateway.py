"""What the gateway of external costs: its own time per request, many programs at once, rows of an episode.

    python -m contrib.external.benchmarks.gateway [--json FILE]

The requests are those of a coding agent: 24 tools, a system prompt, a history of calls and results, 100 kB each, in a
stream. Clients are threads of another process, on loopback, without a client library. All figures are of one run:

    own     milliseconds of a request of 100 kB, from its first byte to the last one of the response, with a model that
            costs nothing, in each dialect: with a scripted agent (the gateway alone), and with an agent that renders
            and records every token; then its CPU time. And the same conversation by that agent in process
    at once seconds of 64 agents with four such requests each, and a model of MODEL_SECONDS a request: by sessions of
            the gateway, and by the agent in process, with the CPU time of this process; then with programs that are
            started for it, each a Python of its own. Best of RUNS
    rows    of an agent that only appends, and of one that edits its system prompt in every request, with the reasons

Every episode is checked: its turns, its reward, its rows, and that nothing was refused or ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from benchmarks.machine import describe
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.protocols import Agent
from forge_env.core.tokens import IDS, array_of
from forge_env.core.turn import Completion
from forge_env.core.types import Action, EpisodeLimits, Message, Sampling, Task, ToolSpec
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from forge_env.utils.gc_settings import relax_garbage_collector
from trainers.model.sizes import MODEL_SIZES
from trainers.model.tiny_model import make_tiny_model

PROGRAMS, REQUESTS, MODEL_SECONDS, RUNS = 64, 4, 0.05, 5
LONG = 24
"""Requests of a conversation of which the time of one is measured."""
BYTES = 100_000
TOKEN = "benchmark-of-the-gateway"
LIMITS = EpisodeLimits(max_turns=64, max_tokens=400_000, step_seconds=60.0, episode_seconds=300.0)
SIZE = replace(MODEL_SIZES["tiny"], vocab_size=4096)
"""About five characters a token, as models have them for code and English."""
CLIENT = Path(__file__).with_name("gateway_client.py")

_rng = random.Random(0)
_WORDS = ["".join(_rng.choices("abcdefghijklmnopqrstuvwxyz", k=_rng.randint(2, 9))) for _ in range(2000)]


def text(size: int, rng: random.Random = _rng) -> str:
    """Lines of words, of some characters."""
    lines = [" ".join(rng.choices(_WORDS, k=12)) for _ in range(size // 60)]
    return "\n".join(lines)[:size]


def make_tool(number: int) -> ToolSpec:
    names = [f"{_WORDS[number]}_{i}" for i in range(6)]
    properties = {name: {"type": "string", "description": text(150)} for name in names}
    parameters = {"type": "object", "properties": properties, "required": names[:2], "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": text(800), "parameters": parameters},
    }


TOOLS = tuple(make_tool(number) for number in range(24))
SYSTEM = text(20_000)
CALL: Message = {
    "role": "assistant",
    "content": "Next.",
    "tool_calls": [{"type": "function", "function": {"name": "tool_1", "arguments": {"command": "ls -la src"}}}],
}


@functools.cache
def conversation(number: int, requests: int) -> tuple[list[Message], list[Message]]:
    """The first messages of a conversation, and the result of each call; its requests have BYTES in the middle."""
    rng = random.Random(number)
    results: list[Message] = [
        {"role": "tool", "content": text(600, rng), "tool_call_id": "call_0"} for _ in range(requests - 1)
    ]
    size = len(json.dumps(chat([{"role": "system", "content": SYSTEM}]))) + 450 * requests
    question = f"{number} " + text(BYTES - size, rng)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}], results


def requests_of(number: int, requests: int, *, edits: bool = False) -> list[list[Message]]:
    """The messages of each request of a conversation; `edits` changes the system prompt in every request."""
    said, results = conversation(number, requests)
    asked: list[list[Message]] = []
    for turn, result in enumerate([None, *results]):
        if result is not None:
            function = {"name": "tool_1", "arguments": json.dumps(CALL["tool_calls"][0]["function"]["arguments"])}
            id_ = f"turn{turn - 1}-call_0"
            call: Message = {**CALL, "tool_calls": [{"id": id_, "type": "function", "function": function}]}
            said = [*said, call, {**result, "tool_call_id": id_}]
        system = f"It is {turn} o'clock. {SYSTEM}" if edits else SYSTEM
        asked.append([{"role": "system", "content": system}, *said[1:]])
    return asked


def chat(messages: Sequence[Message]) -> dict[str, Any]:
    return {"model": "policy", "messages": list(messages), "tools": list(TOOLS), "stream": True}


def responses(messages: Sequence[Message]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        role = "developer" if message["role"] == "system" else message["role"]
        items.append({"type": "message", "role": role, "content": [{"type": kind, "text": message["content"]}]})
        for call in message.get("tool_calls", ()):
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    return {"model": "policy", "input": items, "tools": tools, "stream": True}


def anthropic(messages: Sequence[Message]) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    for message in messages[1:]:
        content = [{"type": "text", "text": message["content"]}]
        if message["role"] == "tool":
            id_ = message["tool_call_id"]
            content = [{"type": "tool_result", "tool_use_id": id_, "content": message["content"]}]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            use = {"type": "tool_use", "id": call["id"], "name": function["name"]}
            content.append({**use, "input": json.loads(function["arguments"])})
        said.append({"role": "assistant" if message["role"] == "assistant" else "user", "content": content})
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in TOOLS)
    ]
    system = [{"type": "text", "text": messages[0]["content"]}]
    body = {"model": "policy", "max_tokens": 32_000, "system": system, "messages": said, "tools": tools}
    return {**body, "stream": True}


DIALECTS: dict[str, tuple[str, Callable[[Sequence[Message]], dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", chat),
    "responses": ("/v1/responses", responses),
    "anthropic": ("/v1/messages", anthropic),
}


class TimedPolicy:
    """Calls the tool, after `seconds`, however many ask at once."""

    def __init__(self, model: str, seconds: float = 0.0) -> None:
        self._tokens = array_of(TokenAgent(model, self).renderer.write(CALL), IDS)
        self._seconds = seconds

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        count = len(self._tokens)
        return Completion(
            prompt_ids=array_of(prompt_ids, IDS),
            token_ids=self._tokens,
            logprobs=-0.001 * np.arange(count),
            versions=((0, count),),
        )


class Scripted(Env):
    """The same conversations, without a gateway."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        task = (options or {})["task"]
        said, self._results = conversation(task.metadata["number"], task.metadata["requests"])
        self._turn = 0
        self.tools = TOOLS
        return said, {}

    async def step(self, action: Action) -> Any:
        self._turn += 1
        if self._turn > len(self._results):
            return (), 1.0, True, False, {}
        return [self._results[self._turn - 1]], 0.0, False, False, {}


def tasks_of(numbers: Sequence[int], requests: int) -> list[Task]:
    question: Message = {"role": "user", "content": "go"}
    return [Task(prompt=(question,), metadata={"number": n, "requests": requests}) for n in numbers]


async def play(factory: EnvFactory, agent: Agent, tasks: Sequence[Task]) -> list[Episode]:
    """Play all tasks at once."""
    return await asyncio.gather(
        *(run_episode(factory, agent, t, seed=i, episode_id=str(i), limits=LIMITS) for i, t in enumerate(tasks))
    )


def check(episodes: Sequence[Episode], turns: int, rows: int = 1) -> None:
    for episode in episodes:
        found = (str(episode.outcome), episode.reward, len(episode.turns))
        assert found == ("scored", 1.0, turns), (found, episode.error, episode.info)
        assert episode.turns[0].kind == "text" or len(episode.rows) == rows, episode.info
        assert not {"refused_requests", "ignored_fields"} & episode.info.keys(), episode.info


def write_requests(path: Path, dialect: str, conversations: Sequence[Sequence[Sequence[Message]]]) -> None:
    """Write the bodies that clients send, each on a line; the first line says how many belong together."""
    where, body = DIALECTS[dialect]
    bodies = [json.dumps(body(messages)) for messages in conversations[0]]
    header = {"path": where, "requests": len(bodies)}
    lines = [json.dumps(body(messages)) for asked in conversations for messages in asked]
    path.write_text("\n".join([json.dumps(header), *lines]) + "\n")


async def by_sessions(agent: Agent, file: Path, count: int, *, threads: int) -> tuple[list[Episode], dict[str, Any]]:
    """Let clients of another process play `count` sessions; return the episodes, and what the clients measured."""
    async with make("sessions", listen="127.0.0.1:0") as factory:
        url = factory.shared["setup"].gateway.base_url.removesuffix("/v1")
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-E", str(CLIENT), str(file), url, TOKEN, str(count), str(threads)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdin is not None and client.stdout is not None
        try:
            assert await client.stdout.readline() == b"ready\n"
            playing = asyncio.create_task(play(factory, agent, tasks_of(range(count), 0)))
            await asyncio.sleep(0.5)  # until all sessions are on offer
            client.stdin.write(b"go\n")
            began = time.process_time()
            async with asyncio.timeout(300):
                episodes = await playing
                cpu = time.process_time() - began
                told = await client.stdout.readline()
                assert await client.wait() == 0
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
    return episodes, {**json.loads(told), "cpu_seconds": cpu}


async def own_time(agent: Agent, folder: Path, dialect: str, episodes: int = 4) -> dict[str, float]:
    """Milliseconds of a request: the median of the whole time, and the CPU time of this process."""
    file = folder / f"{dialect}.jsonl"
    write_requests(file, dialect, [requests_of(n, LONG) for n in range(episodes)])
    played, told = await by_sessions(agent, file, episodes, threads=1)
    check(played, LONG)
    seconds = sorted(told["seconds"])
    return {
        "kilobytes": round(statistics.median(told["bytes"]) / 1000, 1),
        "p50_ms": round(1e3 * statistics.median(seconds), 2),
        "p95_ms": round(1e3 * seconds[int(0.95 * len(seconds))], 2),
        "cpu_ms": round(1e3 * told["cpu_seconds"] / len(seconds), 2),
    }


async def in_process(agent: Agent, count: int, requests: int) -> tuple[float, float]:
    """Seconds of as many conversations at once without a gateway, of the clock and of CPU."""
    tasks = tasks_of(range(count), requests)
    for number in range(count):
        conversation(number, requests)  # made before it is timed
    async with EnvFactory(Scripted) as factory:
        started, cpu = time.perf_counter(), time.process_time()
        check(await play(factory, agent, tasks), requests)
        return time.perf_counter() - started, time.process_time() - cpu


async def programs(agent: Agent, file: Path) -> float:
    """Seconds of PROGRAMS programs at once, with their starts."""
    command = shlex.join([sys.executable, "-S", "-E", str(CLIENT), str(file)])
    async with make("external", command=command) as factory:
        started = time.perf_counter()
        check(await play(factory, agent, tasks_of(range(PROGRAMS), 0)), REQUESTS)
        return time.perf_counter() - started


async def measure(model: str, folder: Path) -> dict[str, Any]:
    costs_nothing = TokenAgent(model, TimedPolicy(model))
    timed = TokenAgent(model, TimedPolicy(model, MODEL_SECONDS))
    says = ScriptedAgent(lambda messages: CALL)
    figures: dict[str, Any] = {"own": {}, "at_once": {}, "rows": {}}
    for dialect in DIALECTS:
        figures["own"][dialect] = {
            "scripted": await own_time(says, folder, dialect),
            "tokens": await own_time(costs_nothing, folder, dialect),
        }
    alone = min([await in_process(costs_nothing, 1, LONG) for _ in range(RUNS)])
    figures["own"]["in_process_ms"] = round(1e3 * alone[0] / LONG, 2)

    file = folder / "at_once.jsonl"
    write_requests(file, "chat", [requests_of(number, REQUESTS) for number in range(PROGRAMS)])
    served: list[tuple[float, float]] = []
    for _ in range(RUNS):
        episodes, told = await by_sessions(timed, file, PROGRAMS, threads=PROGRAMS)
        check(episodes, REQUESTS)
        served.append((told["wall_seconds"], told["cpu_seconds"]))
    inside = min([await in_process(timed, PROGRAMS, REQUESTS) for _ in range(RUNS)])
    started = min([await programs(timed, file) for _ in range(RUNS)])
    figures["at_once"] = {
        "programs": PROGRAMS,
        "requests": REQUESTS,
        "model_seconds": MODEL_SECONDS,
        "in_process_seconds": round(inside[0], 3),
        "in_process_cpu_seconds": round(inside[1], 3),
        "sessions_seconds": round(min(served)[0], 3),
        "sessions_cpu_seconds": round(min(cpu for _, cpu in served), 3),
        "sessions_ratio": round(min(served)[0] / inside[0], 2),
        "started_seconds": round(started, 3),
        "lost": 0,  # checked
    }
    for name, edits in (("appends", False), ("edits_its_system_prompt", True)):
        file = folder / f"{name}.jsonl"
        write_requests(file, "chat", [requests_of(0, REQUESTS, edits=edits)])
        [episode], _ = await by_sessions(costs_nothing, file, 1, threads=1)
        check([episode], REQUESTS, REQUESTS if edits else 1)
        began = [{"turn": row.turn, "kind": row.kind, "why": row.why} for row in episode.lineage[1:]]
        figures["rows"][name] = {"turns": len(episode.turns), "rows": len(episode.rows), "row_began": began}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    os.environ["FORGE_ENV_TOKEN"] = TOKEN
    relax_garbage_collector()  # as the process of the environments does
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_tiny_model(model, [(conversation(-1, REQUESTS)[0], TOOLS)], seed=0, size=SIZE)
        figures = asyncio.run(measure(str(model), Path(folder)))
    print(json.dumps(figures, indent=2))
    if options.json:
        noted = {"machine": describe(), "load_average": os.getloadavg()[0]}
        options.json.write_text(json.dumps({**noted, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
