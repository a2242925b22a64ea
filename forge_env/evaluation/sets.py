"""Evaluation sets: several environments and agents, which a YAML file lists.

    defaults: {tasks: 64, samples: 4}
    envs:
      - math
      - {name: hard, env: math, options: {level: 4}}
    agents:
      - scripted:expert
      - {name: trained, agent: "checkpoint:runs/one", temperature: 0.7}

Every agent is measured in every environment; `rows` lists other pairs, such as {env: hard, agent: trained}. A pair
takes its settings from defaults, its environment, its agent and its row; the later one counts. It is an evaluation of
its own, in the folder ENVIRONMENT/AGENT below the set's folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from forge_env.core.errors import ForgeError, InvariantError, UserError, first_error, nearest
from forge_env.core.protocols import Agent
from forge_env.evaluation.api import EvalResult, evaluate_async, warn_each_time
from forge_env.evaluation.compare import Comparison, compare_all_success, finite
from forge_env.evaluation.folder import open_locked
from forge_env.evaluation.plan import LOCAL
from forge_env.evaluation.progress import LiveProgress
from forge_env.evaluation.settings import EvalSettings
from forge_env.records.run_files import CONFIG, PLAN
from forge_env.registry.agent_spec import AgentSettings, open_agent, split_agent
from forge_env.utils.atomic import replace_file
from forge_env.utils.folders import remove_empty
from forge_env.utils.run_async import run_async
from forge_env.utils.secret_values import masked_text
from forge_env.utils.targets import check_not_importing
from forge_env.utils.yaml_text import read_yaml_file

RESULT = "set.json"
_KEYS = ("defaults", "envs", "agents", "rows")
_WORDS = {"env": "environment", "agent": "agent"}


@dataclass(frozen=True, kw_only=True)
class SetRow:
    """One environment and one agent of a set."""

    env: str
    """The name of the environment in the set."""
    agent: str
    """The name of the agent in the set."""
    settings: Mapping[str, Any]
    """The arguments of `evaluate`: the environment, the agent, and all given settings."""
    folder: Path
    result: EvalResult | None = None
    """None if the evaluation has failed."""
    error: str = ""
    """Why it has failed."""


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """What an evaluation set measured."""

    folder: Path
    rows: Sequence[SetRow]
    comparisons: Sequence[tuple[str, str, str, Comparison]]
    """Environment, first agent, second agent, and the success of the second minus the first. P-values and intervals are
    corrected for the number of all comparisons of the set, by Holm's method."""

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "env": row.env,
                "agent": row.agent,
                "folder": str(row.folder),
                "error": row.error or None,
                "figures": None if row.result is None else row.result.figures,
            }
            for row in self.rows
        ]
        comparisons = [
            {"env": env, "agents": [first, second], **finite(dataclasses.asdict(c))}
            for env, first, second, c in self.comparisons
        ]
        return {"rows": rows, "comparisons": comparisons}


async def evaluate_set_async(
    file: str | Path,
    out: str | Path,
    *,
    progress: bool | LiveProgress = True,
    warn: Callable[[str], None] = warn_each_time,
) -> SetResult:
    """Run the evaluations of a set one after the other, and compare the agents of each environment.

    The same call resumes what is missing. An evaluation that fails does not end the others. Evaluations with the same
    local model and the same settings of its engine share the engine.

    Args:
        out: folder of the results; each evaluation has a folder below it, and set.json has all figures.

    Raises:
        UserError: for a mistake in the file, or a folder that another process uses.
    """
    folder = Path(out)
    rows = read_set(Path(file), folder)
    if (folder / PLAN).exists() or (folder / CONFIG).exists():
        raise UserError(f"{folder} holds an evaluation of one agent or a training run: choose another --out")
    live = progress if isinstance(progress, LiveProgress) else LiveProgress(quiet=not progress)
    new_folders, lock = open_locked(folder)
    try:
        results: dict[tuple[str, str], SetRow] = {}
        agents = list(dict.fromkeys(row.agent for row in rows))
        async with aclosing(_SharedEngine()) as engine:
            for row in sorted(rows, key=lambda row: agents.index(row.agent)):  # rows of one agent share its engine
                results[row.env, row.agent] = await _run(row, engine, live, warn)
        in_order = [results[row.env, row.agent] for row in rows]
        result = SetResult(folder=folder, rows=in_order, comparisons=_comparisons(in_order, warn))
        replace_file(folder / RESULT, json.dumps(result.to_dict(), indent=2, allow_nan=False, default=str) + "\n")
        return result
    finally:
        os.close(lock)
        remove_empty(new_folders)


def evaluate_set(file: str | Path, out: str | Path, **arguments: Any) -> SetResult:
    """Do the same in plain code, see `evaluate_set_async`."""
    check_not_importing("evaluate_set")
    return run_async(evaluate_set_async(file, out, **arguments))


async def _run(row: SetRow, engine: _SharedEngine, live: LiveProgress, warn: Callable[[str], None]) -> SetRow:
    def tell(text: str) -> None:
        warn(f"{row.agent} in {row.env}: {text}")

    try:
        result = await evaluate_async(
            out=row.folder, progress=live, warn=tell, open_agent=engine.open_agent, **row.settings
        )
    except (ForgeError, BaseExceptionGroup) as raised:
        error = first_error(raised)
        if not isinstance(error, ForgeError) or isinstance(error, InvariantError):
            raise
        await engine.aclose()  # it may be broken
        return replace(row, error=masked_text(" ".join(str(error).split())))
    return replace(row, result=result)


def _comparisons(rows: Sequence[SetRow], warn: Callable[[str], None]) -> list[tuple[str, str, str, Comparison]]:
    with_episodes = [row for row in rows if row.result is not None and row.result.figures["episodes"]]
    pairs = [(first, second) for first, second in combinations(with_episodes, 2) if first.env == second.env]
    outcomes = compare_all_success([(first.folder, second.folder) for first, second in pairs], warn)
    comparisons = []
    for (first, second), comparison in zip(pairs, outcomes, strict=True):
        if comparison is not None:
            comparisons.append((first.env, first.agent, second.agent, comparison))
            for text in comparison.notes():
                warn(f"{second.agent} minus {first.agent} in {first.env}: {text}")
    return comparisons


class _SharedEngine:
    """Keeps the engine of a local model open, until an agent with another one is opened. Close it with `aclose`."""

    def __init__(self) -> None:
        self._current: tuple[str, AgentSettings, Agent] | None = None
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def open_agent(self, spec: str, settings: AgentSettings) -> AsyncIterator[Agent]:
        if split_agent(spec)[0] not in LOCAL:
            async with open_agent(spec, settings) as agent:
                yield agent
            return
        settings = replace(settings, env="", env_class=None)  # of experts only
        if self._current is None or self._current[:2] != (spec, settings):
            await self.aclose()
            self._current = (spec, settings, await self._stack.enter_async_context(open_agent(spec, settings)))
        yield self._current[2]

    async def aclose(self) -> None:
        self._current = None
        await self._stack.aclose()


def read_set(file: Path, out: Path) -> list[SetRow]:
    data = read_yaml_file(file, is_strict=True)
    if not isinstance(data, dict):
        raise UserError(f"{file} is no mapping: write envs: and agents:, each with a list")
    for key in data:
        if key not in _KEYS:
            raise UserError(f"{file}: a set has no key {key!r}. {nearest(str(key), _KEYS)}")
    defaults = data.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise UserError(f"{file}: defaults are {defaults!r:.80}; write them as a mapping, such as {{tasks: 64}}")
    _check(file, "defaults", defaults)
    envs, agents = (_entries(file, kind, data.get(f"{kind}s")) for kind in ("env", "agent"))
    rows = [{"env": env, "agent": agent} for env in envs for agent in agents]
    if "rows" in data:
        rows = [_row(file, row) for row in _list(file, "rows", data["rows"])]
    if not rows:
        raise UserError(
            f"{file} has no {'rows' if 'rows' in data else 'agents' if envs else 'environments'}: write a list under "
            "envs and agents, or under rows"
        )
    by_key: dict[tuple[str, str], SetRow] = {}
    for row in rows:
        env, agent = str(row["env"]), str(row["agent"])
        of_env, of_agent = envs.get(env, {"env": env}), agents.get(agent, {"agent": agent})
        own = {name: value for name, value in row.items() if name not in ("env", "agent")}
        settings = {**defaults, **of_env, **of_agent, **own}
        key = _folder_name(env), _folder_name(agent)
        if key in by_key:
            raise UserError(
                f"{file}: the row of the environment {env!r} and the agent {agent!r} is there twice: list the agent "
                "under agents with another name and other settings"
            )
        by_key[key] = SetRow(env=env, agent=agent, settings=settings, folder=out.joinpath(*key))
    return list(by_key.values())


def _entries(file: Path, kind: str, data: Any) -> dict[str, dict[str, Any]]:
    """Return the environments or the agents of a set by their names: the arguments of `evaluate` that each gives."""
    entries: dict[str, dict[str, Any]] = {}
    for item in _list(file, f"{kind}s", data or []):
        entry = {kind: item} if isinstance(item, str) else item
        if not isinstance(entry, dict) or not isinstance(entry.get(kind), str):
            raise UserError(f"{file}: {item!r:.80} under {kind}s is neither a text nor a mapping with the text {kind}")
        name = str(entry.get("name", entry[kind]))
        if _folder_name(name) in map(_folder_name, entries):
            raise UserError(
                f"{file}: the {_WORDS[kind]} {name!r} is there twice: remove one, or give them a name that differs, as "
                f"in {{name: other, {kind}: {entry[kind]}}}"
            )
        entries[name] = {key: value for key, value in entry.items() if key != "name"}
        _check(file, f"the {_WORDS[kind]} {name!r}", {k: value for k, value in entries[name].items() if k != kind})
    return entries


def _row(file: Path, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not all(isinstance(row.get(kind), str) for kind in _WORDS):
        raise UserError(f"{file}: the row {row!r:.80} is no mapping with the texts env and agent")
    _check(file, f"the row {row!r:.80}", {name: value for name, value in row.items() if name not in _WORDS})
    return row


def _list(file: Path, key: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise UserError(f"{file}: {key} is {data!r:.80}; write a list, with - before each item")
    return data


def _check(file: Path, where: str, settings: Mapping[str, Any]) -> None:
    try:
        EvalSettings.of(settings)
    except UserError as error:
        raise UserError(f"{file}, {where}: {error}") from None


def _folder_name(name: str) -> str:
    """A name as a folder's: "checkpoint:runs/one" is checkpoint-runs-one."""
    return re.sub(r"[^\w.=+@]+", "-", name).strip("-.") or "-"
