"""`forge-env eval`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_env.cli.options import parse_options
from forge_env.cli.output import Json, emit, note, stdout_to_stderr
from forge_env.cli.running import run

if TYPE_CHECKING:
    from forge_env.core.types import EpisodeLimits

_OF = "Limit of an episode; else that of a checkpoint's training, or what the environment declares."
Limit = Annotated[int | None, typer.Option(help=_OF)]
Seconds = Annotated[float | None, typer.Option(help=_OF)]


def evaluate(
    env: Annotated[str, typer.Option(help="An environment's name, or its target.")],
    agent: Annotated[
        str,
        typer.Option(
            help="scripted:expert, scripted:null, scripted:FILE.py:FUNCTION, openai:MODEL@BASE_URL, "
            "vllm:FOLDER_OR_HUB_ID or checkpoint:RUN."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the results; the same command goes on where it stopped.")],
    n: Annotated[int, typer.Option("-n", help="Attempts at each task.")] = 1,
    tasks: Annotated[int, typer.Option(help="How many tasks.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the tasks and the episodes.")] = 0,
    split: Annotated[str, typer.Option(help="Of the tasks.")] = "test",
    option: Annotated[list[str], typer.Option(help="Option of the environment, as level=2; may be repeated.")] = [],  # noqa: B006 (typer reads it, nobody changes it)
    tools: Annotated[list[str], typer.Option(help="The environment's option tools; may be repeated.")] = [],  # noqa: B006
    command: Annotated[str, typer.Option(help="The environment's option command, as external has it.")] = "",
    concurrency: Annotated[int, typer.Option(help="Episodes at once.")] = 16,
    temperature: Annotated[float | None, typer.Option(help="Of sampling; 1, or the endpoint's own.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of sampling; 1, or the endpoint's own.")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Greedy, and repeats exactly.")] = False,
    max_turns: Limit = None,
    max_turn_tokens: Limit = None,
    max_tokens: Limit = None,
    step_seconds: Seconds = None,
    episode_seconds: Seconds = None,
    scoring_seconds: Seconds = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="To an endpoint, at most.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable with an endpoint's key.")] = "OPENAI_API_KEY",
    answer_seconds: Annotated[
        float | None,
        typer.Option(help="For one answer; else 1800 for a script, 120 for an endpoint, no limit for a model here."),
    ] = None,
    idle_seconds: Annotated[
        float | None,
        typer.Option(help="Silence that ends an answer: an endpoint then streams; else 300 for a model here."),
    ] = None,
    price_prompt: Annotated[float | None, typer.Option(help="Of a million prompt tokens.")] = None,
    price_completion: Annotated[float | None, typer.Option(help="Of a million sampled tokens.")] = None,
    as_json: Json = False,
) -> int:
    """Measure an agent in an environment, and write every episode down.

    Ends with 1 when no episode came to an end without a fault of the machinery.
    """
    from forge_env.cli.eval_view import LiveView, show_result
    from forge_env.evaluation.plan import EvalPlan
    from forge_env.evaluation.run import run_evaluation
    from forge_env.evaluation.summary import Prices

    options = parse_options(option, tools, command)
    plan = EvalPlan(
        env=env,
        agent=agent,
        options=options,
        split=split,
        tasks=tasks,
        n=n,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        deterministic=deterministic,
        answer_seconds=answer_seconds,
        idle_seconds=idle_seconds,
        limits=_limits(
            agent,
            env,
            options,
            max_turns=max_turns,
            max_turn_tokens=max_turn_tokens,
            max_tokens=max_tokens,
            step_seconds=step_seconds,
            episode_seconds=episode_seconds,
            scoring_seconds=scoring_seconds,
        ),
    )
    priced = price_prompt is not None or price_completion is not None
    prices = Prices(prompt=price_prompt or 0.0, completion=price_completion or 0.0) if priced else None
    view = LiveView(f"{agent} in {env}", quiet=as_json, prices=prices)
    evaluation = run_evaluation(
        plan,
        out,
        concurrency=concurrency,
        requests_per_minute=requests_per_minute,
        api_key_env=api_key_env,
        prices=prices,
        progress=view.update,
    )
    try:
        with stdout_to_stderr(as_json), view:
            result = {**run(evaluation), "out": str(out)}
    except (KeyboardInterrupt, SystemExit):
        note(f"{view.done} of {view.total} episodes are in {out}; the same command goes on from there")
        raise
    emit(result) if as_json else show_result(result)
    _remark(result, tasks, out)
    return 0 if result["episodes"] else 1


def _limits(agent: str, env: str, options: dict[str, Any], **given: float | None) -> EpisodeLimits:
    """The limits of an agent in an environment, and in their place those that were given."""
    from forge_env.evaluation.plan import limits_of
    from forge_env.rollout.factory import make

    own: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(limits_of(agent, make(env, **options)), **own)


def _remark(result: dict[str, Any], tasks: int, out: Path) -> None:
    if result["tasks"] < tasks:
        note(f"{tasks} tasks were asked for, and {result['env']} gave {result['tasks']} different ones")
    if result["dropped_faults"]:
        note(f"{out} held nothing but faults from before a change; they are gone")
    if result["unrecorded"]:
        note(f"an older forge_env wrote {out}, and does not say which code and weights it measured")
    for limit, count in result["ended_by"].items():
        most = f"{limit} ({result['limits'][limit]:g}): --{limit.replace('_', '-')} sets it"
        note(f"{count} of {result['episodes']} episodes were ended by {most}")
    if not result["episodes"] and result["first_errors"]:
        count, first = sum(result["faults"].values()), next(iter(result["first_errors"].values()))
        note(f"there is no result: all {count} episodes ended by a fault, the first one by {first}")
    if refused := result["refused_requests"]:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in refused.items())
        note(f"{sum(refused.values())} requests of the programs were refused: {reasons}; the episodes' info says more")
    if open_places := sum(result["faults"].values()):
        note(f"faults that left no result: {open_places}, see {out}/faults.jsonl; the same command tries them again")
