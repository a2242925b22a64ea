"""`forge-env eval`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_env.cli.env_options import parse_options
from forge_env.cli.output import Json, emit, last_words, note, stdout_to_stderr
from forge_env.core.types import EpisodeLimits
from forge_env.utils.run_async import run_async

if TYPE_CHECKING:
    from forge_env.core.usage import Prices
    from forge_env.evaluation.plan import EvalPlan
    from forge_env.telemetry.sender import SpanSender

_AGENT = (
    "scripted:expert, scripted:null, scripted:FILE.py:FUNCTION, openai:MODEL@BASE_URL, vllm:FOLDER_OR_HUB_ID or "
    "checkpoint:RUN, also RUN@best or RUN@40."
)
_ANSWER_SECONDS = "Time limit of one answer; else 1800 for a script, 120 for an endpoint, none for a local model."
_IDLE_SECONDS = "Silence after which an answer is given up: an endpoint then streams; else 300 for a local model."
_LIMIT = "Limit of an episode; else that of a checkpoint's training, or what the environment declares."
_THINKING = (
    "Whether a model thinks: off, on or template; else as a checkpoint's training did, off for vllm:, and an endpoint "
    "decides."
)
_LIKE = "Folder of the training run that openai: serves: warn if the endpoint renders prompts otherwise."
_ADAPTER = "Folder of an adapter in PEFT's format, for the model of vllm:."
_OTEL = "OpenTelemetry spans of episodes, turns and tool calls: off, spans, or messages for their texts, too."
_OUT = "Folder of the results; the same command resumes what is unfinished, and more --tasks extend it."
_TASKS = "Number of tasks; else 200, or as many as there are."
_GREEDY = "Beside the attempts of a local model, one at each task at temperature 0."
_SAMPLING = "Of sampling; else 1, or the endpoint's default."

Options = Annotated[list[str], typer.Option(help="Option of the environment, such as level=2; may be repeated.")]
Tools = Annotated[list[str], typer.Option(help="Value of the environment's option tools; may be repeated.")]
Command = Annotated[str, typer.Option(help="Value of the environment's option command, for example of external.")]
Sampling = Annotated[float | None, typer.Option(help=_SAMPLING)]
Adapter = Annotated[str, typer.Option(help=_ADAPTER)]
Thinking = Annotated[str | None, typer.Option(help=_THINKING)]
AnswerSeconds = Annotated[float | None, typer.Option(help=_ANSWER_SECONDS)]
IdleSeconds = Annotated[float | None, typer.Option(help=_IDLE_SECONDS)]


def _with_limits(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command an option for each limit of an episode, in the place of its `**given_limits`."""
    signature = inspect.signature(command, eval_str=True)
    *parameters, others = signature.parameters.values()
    limits = [
        others.replace(
            name=name,
            kind=inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, typer.Option(help=_LIMIT)],
        )
        for name, kind in typing.get_type_hints(EpisodeLimits).items()
    ]
    command.__signature__ = signature.replace(parameters=[*parameters, *limits])  # type: ignore[attr-defined]
    return command


@_with_limits
def evaluate(
    env: Annotated[str, typer.Option(help="Name or target of an environment.")],
    agent: Annotated[str, typer.Option(help=_AGENT)],
    out: Annotated[Path, typer.Option(help=_OUT)],
    n: Annotated[int, typer.Option("-n", help="Attempts at each task.")] = 1,
    tasks: Annotated[int | None, typer.Option(help=_TASKS)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tasks and the episodes.")] = 0,
    split: Annotated[str, typer.Option(help="Split of the tasks.")] = "test",
    option: Options = [],  # noqa: B006 (typer reads it, nobody changes it)
    tools: Tools = [],  # noqa: B006
    command: Command = "",
    concurrency: Annotated[int, typer.Option(help="Episodes at the same time.")] = 16,
    temperature: Sampling = None,
    top_p: Sampling = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Greedy, and exactly repeatable.")] = False,
    greedy: Annotated[bool, typer.Option(help=_GREEDY)] = True,
    thinking: Thinking = None,
    adapter: Adapter = "",
    like: Annotated[str, typer.Option(help=_LIKE)] = "",
    requests_per_minute: Annotated[float | None, typer.Option(help="Rate limit of requests to an endpoint.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable that holds an endpoint's key.")] = "OPENAI_API_KEY",
    answer_seconds: AnswerSeconds = None,
    idle_seconds: IdleSeconds = None,
    price_prompt: Annotated[float | None, typer.Option(help="Price of a million prompt tokens.")] = None,
    price_completion: Annotated[float | None, typer.Option(help="Price of a million sampled tokens.")] = None,
    otel: Annotated[str, typer.Option(help=_OTEL)] = "off",
    as_json: Json = False,
    **given_limits: Any,
) -> int:
    """Measure an agent in an environment, and record every episode.

    Exits with 1 when no episode ended without a fault of the machinery, or nothing can be scored.
    """
    from forge_env.evaluation.plan import EvalPlan, thinking_of
    from forge_env.telemetry.sender import check_otel

    check_otel(otel, "--otel")
    options = parse_options(option, tools, command)
    plan = EvalPlan(
        env=env,
        agent=agent,
        options=options,
        split=split,
        tasks=200 if tasks is None else tasks,
        n=n,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        deterministic=deterministic,
        thinking=thinking or thinking_of(agent),
        adapter=adapter,
        answer_seconds=answer_seconds,
        idle_seconds=idle_seconds,
        limits=_limits(agent, env, options, given_limits),
    )
    settings = {
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "api_key_env": api_key_env,
        "prices": _prices(price_prompt, price_completion),
        "like": like,
        "greedy": greedy,
        "at_most": tasks is None,
    }
    return _run(plan, out, settings, otel, as_json=as_json)


def _run(plan: EvalPlan, out: Path, settings: dict[str, Any], otel: str, *, as_json: bool) -> int:
    from forge_env.cli.eval_output import LiveProgress, named, show_result
    from forge_env.evaluation.run import run_evaluation

    progress = LiveProgress(
        f"{named(plan.agent, plan.adapter)} in {plan.env}", quiet=as_json, prices=settings["prices"]
    )
    try:
        with stdout_to_stderr(as_json), _spans(plan, otel) as spans, progress:
            evaluation = run_evaluation(plan, out, progress=progress.update, spans=spans, warn=note, **settings)
            result = {**run_async(evaluation), "out": str(out)}
    except (KeyboardInterrupt, SystemExit):
        kept = f"{progress.done} of {progress.total} episodes are in {out}; the same command resumes from there"
        last_words(kept if progress.done else "interrupted before the end of the first episode")
        raise
    emit(result) if as_json else show_result(result)
    _show_notes(result, 0 if settings["at_most"] else plan.tasks, out)
    return 0 if result["episodes"] and "unscored" not in result else 1


@contextmanager
def _spans(plan: EvalPlan, otel: str) -> Iterator[SpanSender | None]:
    if otel == "off":
        yield None
        return
    from forge_env.telemetry.sender import SpanSender
    from forge_env.telemetry.spans import source_of

    def say(text: str) -> None:
        note(text.removeprefix("warning: "))

    with SpanSender(source_of(plan.agent), messages=otel == "messages", say=say) as spans:
        yield spans


def _prices(prompt: float | None, completion: float | None) -> Prices | None:
    from forge_env.core.usage import Prices

    if prompt is None and completion is None:
        return None
    return Prices(prompt=prompt or 0.0, completion=completion or 0.0)


def _limits(agent: str, env: str, options: dict[str, Any], given: dict[str, Any]) -> EpisodeLimits:
    """The usual limits of an agent in an environment; limits of the command line come first."""
    from forge_env.evaluation.plan import limits_of
    from forge_env.rollout.factory import make

    overrides = {name: value for name, value in given.items() if value is not None}
    return replace(limits_of(agent, make(env, **options)), **overrides)


def _ended_by(result: dict[str, Any], limit: str) -> str:
    """Name a limit, its value, and how to change it."""
    limits = result["limits"]
    if limit in limits:
        return f"{limit} ({limits[limit]:g}): --{limit.replace('_', '-')} sets it"
    if limit == "own_max_turns":
        return f"the environment's own number of turns, which is below max_turns ({limits['max_turns']:g})"
    tokens = f" of {result['context_tokens']:,} tokens" if "context_tokens" in result else ""
    if result["agent"].startswith("openai:"):
        raised = f"start its server with a larger one; --max-tokens ({limits['max_tokens']:g}) does not raise it"
        return f"the endpoint's own context{tokens}: {raised}"
    return f"the agent's own context{tokens}, which is below max_tokens ({limits['max_tokens']:g}): no option raises it"


def _show_notes(result: dict[str, Any], tasks: int, out: Path) -> None:
    if result["tasks"] < tasks:
        note(f"{tasks} tasks were requested, and {result['env']} has {result['tasks']} different ones")
    if counts := result.get("extended_from"):
        before = " and ".join(map(str, counts))
        note(f"{out} was extended from {before} to {result['tasks']} tasks; the first ones are the same")
    if "rows" in result:
        note(result["rows"])
    if result["dropped_faults"]:
        note(f"{out} held only faults from before a change; they have been removed")
    for limit, count in result["ended_by"].items():
        were = "was" if count == 1 else "were"
        note(f"{count} of {result['episodes']} episodes {were} ended by {_ended_by(result, limit)}")
    if "unscored" in result:
        note(f"nothing was scored: {result['unscored']}")
    if not result["episodes"] and result["first_errors"]:
        count, first = sum(result["faults"].values()), next(iter(result["first_errors"].values()))
        note(f"there is no result: all {count} episodes ended by a fault, the first one by {first}")
    if broken := result.get("broken_tasks"):
        from forge_env.core.faults import broken_note

        note(broken_note(broken))
    if refused := result["refused_requests"]:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in refused.items())
        note(f"{sum(refused.values())} requests of the programs were refused: {reasons}; the episodes' info says more")
    if ignored := result["ignored_fields"]:
        fields = ", ".join(f"{name} ({count})" for name, count in ignored.items())
        note(f"requests of the programs were answered without these fields, with the number of requests: {fields}")
    for kind, rows in result["row_began"].items():
        if kind in ("template", "environment"):  # no program made them
            continue
        count = "1 row" if rows["count"] == 1 else f"{rows['count']} rows"
        note(f"{count} began for the reason {kind}, for example in {rows['example']}")
    if faults := sum(result["faults"].values()):
        note(f"faults that left no result: {faults}, see {out}/faults.jsonl; the same command tries them again")
