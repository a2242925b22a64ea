"""`forge_env.evaluate`: one agent in one environment, from Python; the command `forge-env eval` calls the same."""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from forge_env.core.env import Env
from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import UserError
from forge_env.core.faults import broken_note
from forge_env.core.protocols import Agent
from forge_env.evaluation.compare import Comparison, compare
from forge_env.evaluation.digests import code_of, label
from forge_env.evaluation.folder import read_faults
from forge_env.evaluation.plan import EvalPlan, limits_of, thinking_of
from forge_env.evaluation.progress import LiveProgress, agent_name
from forge_env.evaluation.run import SINK_OPTION, Opener, Script, run_evaluation
from forge_env.evaluation.settings import EvalSettings
from forge_env.records.run_files import EPISODES, FAULTS
from forge_env.records.sinks import load_sink
from forge_env.registry.agent_spec import open_agent
from forge_env.rollout.factory import EnvFactory, make
from forge_env.utils.run_async import run_async
from forge_env.utils.targets import check_not_importing


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EvalResult:
    """What an evaluation measured; its repr is one line of text."""

    figures: Mapping[str, Any]
    """The content of eval.json, see docs/evaluation.md, and the numbers of episodes that were run and read."""
    folder: Path
    """What the evaluation has recorded. A temporary one is removed with this object, or when the process ends."""

    @property
    def success(self) -> float:
        """Success rate of one attempt; NaN if nothing could be scored."""
        return _float(self.figures["pass@1"])

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the success rate, clustered by task."""
        low, high = self.figures["ci95"] or (None, None)
        return _float(low), _float(high)

    @property
    def reward(self) -> float:
        """Mean reward; NaN if nothing could be scored."""
        return _float(self.figures["reward"])

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """The episodes that count, in the order of their ends; read from the folder at the first access."""
        return self._read(EPISODES, read_jsonl)

    @cached_property
    def faults(self) -> tuple[Episode, ...]:
        """The episodes that a fault ended, which no figure counts, with those that were run again later."""
        return self._read(FAULTS, read_faults)

    def _read(self, name: str, read: Callable[[Path], Iterator[Episode]]) -> tuple[Episode, ...]:
        if not self.folder.is_dir():
            raise UserError(f"the folder {self.folder} of the evaluation is gone: give evaluate a folder, out=FOLDER")
        return tuple(read(self.folder / name)) if (self.folder / name).exists() else ()

    def compare(self, other: EvalResult | Path | str) -> list[Comparison]:
        """Compare this evaluation with another one on the same tasks: its figures minus the other's.

        Raises:
            UserError: when they have no attempt in common, or different tasks with the same id.
        """
        if not isinstance(other, EvalResult | Path | str):
            raise UserError(f"compare takes another result of evaluate, or its folder; this is {other!r:.80}")
        return compare(other.folder if isinstance(other, EvalResult) else Path(other), self.folder)

    def __repr__(self) -> str:
        figures = self.figures
        low, high = self.interval
        count, first = sum(figures["faults"].values()), "".join([*figures["first_errors"].values()][:1])
        faults = f", {count} faults{f' ({first})' if first else ''}" if count else ""
        return (
            f"{agent_name(figures['agent'], figures['adapter'])} in {figures['env']}: success {self.success:.3f} "
            f"[{low:.3f}, {high:.3f}], mean reward {self.reward:.3f}, {figures['episodes']} episodes of "
            f"{figures['tasks']} tasks{faults}"
        )


def warn_each_time(text: str) -> None:
    """Warn, also of what `warnings.warn` has said before: it says the same once in a process."""
    warnings.warn_explicit(text, UserWarning, "forge_env", 1)


_ALIKE = ("split", "seed", "temperature", "top_p", "deterministic", "adapter", "answer_seconds", "idle_seconds")
"""Settings that the plan takes as they are."""


async def evaluate_async(
    env: str | type[Env] | EnvFactory,
    agent: str | Script | Agent,
    *,
    out: str | Path | None = None,
    progress: bool | LiveProgress = True,
    warn: Callable[[str], None] = warn_each_time,
    open_agent: Opener = open_agent,
    **settings: Any,
) -> EvalResult:
    """Measure an agent in an environment, and record every episode.

    Args:
        env: a name or target as on the command line, a class, or a factory with options. A class may be from a
            notebook or a function: it runs in this process.
        agent: a text as on the command line (`forge-env eval --help`), a function of the messages so far that returns
            the next one, or an `Agent`, which is used as it is.
        out: folder of the results, as of the command: the same call resumes what is unfinished, and more tasks extend
            it. None is a temporary folder.
        progress: whether stderr shows a bar in a terminal, and else a line every ten seconds.
        warn: told what a result is to be read with.
        open_agent: opens an agent by its name.
        **settings: the fields of `EvalSettings`, and the limits of an episode by the fields of `EpisodeLimits`.

    Raises:
        UserError: a mistake in a setting, or a folder of another evaluation.
        PolicyError: an endpoint gave no answer for some episodes in a row.
    """
    options = EvalSettings.of(settings)
    for entry in options.sinks:
        load_sink(entry, SINK_OPTION)
    factory = _factory(env, options.options)
    factory.add_group_reward(options.group_reward or (env.group_reward if isinstance(env, EnvFactory) else ""))
    factory.check_group_size(options.samples, "--samples")
    name, function = _agent(agent)
    plan = EvalPlan(
        env=factory.name,
        agent=name,
        options=factory.options,
        group_reward=factory.group_reward,
        task_ids=tuple(sorted(set(options.task_ids))),
        tasks=len(set(options.task_ids)) or (EvalPlan.tasks if options.tasks is None else options.tasks),
        n=options.samples,
        thinking=options.thinking or thinking_of(name),
        limits=replace(limits_of(name, factory), **options.limits),
        **{setting: getattr(options, setting) for setting in _ALIKE},
    )
    live = progress if isinstance(progress, LiveProgress) else LiveProgress(quiet=not progress)
    title = f"{agent_name(plan.agent, plan.adapter)} in {plan.env}"
    with _folder(out) as folder, live.of(title, options.prices):
        figures = await run_evaluation(
            plan, folder, options, factory, agent=function, open_agent=open_agent, warn=warn, progress=live.update
        )
    task_count = 0 if options.task_ids else options.tasks or 0
    for text in notes(figures, None if out is None else folder, task_count):
        warn(text)
    result = EvalResult(figures=figures, folder=folder)
    if out is None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def evaluate(env: str | type[Env] | EnvFactory, agent: str | Script | Agent, **arguments: Any) -> EvalResult:
    """Do the same in plain code: a script, or a notebook, where an event loop runs already. See `evaluate_async`.

    Raises:
        KeyboardInterrupt: after Ctrl-C; with `out` the same call resumes the evaluation.
    """
    check_not_importing("evaluate")
    return run_async(evaluate_async(env, agent, **arguments))


def _factory(env: Any, options: Mapping[str, Any]) -> EnvFactory:
    if isinstance(env, str):
        return make(env, **options)
    if isinstance(env, EnvFactory):  # the same call may be made again, and an open one may be in use
        return EnvFactory(env.env_class, name=env.target or label(env.env_class), **{**env.options, **options})
    if isinstance(env, type):  # one of Gymnasium's is wrapped by its name
        name = label(env)
        return EnvFactory(env, name=name, **options) if issubclass(env, Env) else make(name, **options)
    raise UserError(
        f"the environment is {env!r:.80}; give a name, a target such as 'file.py:MyEnv', a class or an EnvFactory"
    )


def _agent(agent: Any) -> tuple[str, Script | Agent | None]:
    """Return the name of an agent for the plan, and the agent itself unless it is a name."""
    if isinstance(agent, str):
        return agent, None
    if not isinstance(agent, type) and (hasattr(agent, "act") or callable(agent)):
        return f"scripted:{label(code_of(agent))}", agent
    raise UserError(
        f"the agent is {agent!r:.80}; give a text such as 'scripted:expert' or 'checkpoint:RUN', a function of the "
        "messages so far, or an object with the method act"
    )


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    folder = Path(tempfile.mkdtemp(prefix="forge_env-eval-"))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _float(value: float | None) -> float:
    return math.nan if value is None else value


def notes(result: Mapping[str, Any], out: Path | None, task_count: int = 0) -> Iterator[str]:
    """Yield the sentences on a result.

    Args:
        out: the folder, which the same call resumes; None is a temporary one.
    """
    if result["tasks"] < task_count:
        yield f"{task_count} tasks were requested, and {result['env']} has {result['tasks']} different ones"
    if counts := result.get("extended_from"):
        before = " and ".join(map(str, counts))
        yield f"{out} was extended from {before} to {result['tasks']} tasks; the first ones are the same"
    if "rows" in result:
        yield result["rows"]
    if result.get("dropped_faults"):
        yield f"{out} held only faults from before a change; they have been removed"
    yield from result["warnings"]
    for limit, count in result["ended_by"].items():
        were = "was" if count == 1 else "were"
        yield f"{count} of {result['episodes']} episodes {were} ended by {_ended_by(result, limit)}"
    if "unscored" in result:
        yield f"nothing was scored: {result['unscored']}"
    if not result["episodes"] and result["first_errors"]:
        count, first = sum(result["faults"].values()), next(iter(result["first_errors"].values()))
        yield f"there is no result: all {count} episodes ended by a fault, the first one by {first}"
    if broken_tasks := result.get("broken_tasks"):
        yield broken_note(broken_tasks)
    if refusals := result["refused_requests"]:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in refusals.items())
        yield f"{sum(refusals.values())} requests of the programs were refused: {reasons}; the episodes' info says more"
    if ignored_fields := result["ignored_fields"]:
        fields = ", ".join(f"{name} ({count})" for name, count in ignored_fields.items())
        yield f"requests of the programs were answered without these fields, with the number of requests: {fields}"
    for kind, rows in result["row_began"].items():
        if kind in ("template", "environment"):  # no program made them
            continue
        count = "1 row" if rows["count"] == 1 else f"{rows['count']} rows"
        yield f"{count} began for the reason {kind}, for example in {rows['example']}"
    if faults := sum(result["faults"].values()):
        where = f", see {out}/faults.jsonl; the same command tries them again" if out else ""
        yield f"faults that left no result: {faults}{where}"


def _ended_by(result: Mapping[str, Any], limit: str) -> str:
    limits = result["limits"]
    if limit in limits:
        return f"{limit} ({limits[limit]:g}): --{limit.replace('_', '-')} sets it"
    if limit == "own_max_turns":
        return f"the environment's own number of turns, which is below max_turns ({limits['max_turns']:g})"
    tokens = f" of {result['context_tokens']:,} tokens" if "context_tokens" in result else ""
    if result["agent"].startswith("openai:"):
        remedy = f"start its server with a larger one; --max-tokens ({limits['max_tokens']:g}) does not raise it"
        return f"the endpoint's own context{tokens}: {remedy}"
    return f"the agent's own context{tokens}, which is below max_tokens ({limits['max_tokens']:g}): no option raises it"
