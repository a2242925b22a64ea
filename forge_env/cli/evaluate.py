"""`forge-env eval`, and `forge-env profile`, which is an evaluation on training tasks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_env.cli.output import Json, emit, last_words, note, stdout_to_stderr
from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.evaluation.settings import EvalSettings
from forge_env.utils.run_async import run_async
from forge_env.utils.secret_values import masked
from forge_env.utils.settings import kinds_of, texts_of, with_entries

if TYPE_CHECKING:
    from forge_env.evaluation.progress import LiveProgress

_AGENT = (
    "scripted:expert, scripted:null, scripted:FILE.py:FUNCTION, openai:MODEL@BASE_URL, vllm:FOLDER_OR_HUB_ID or "
    "checkpoint:RUN, also RUN@best or RUN@40."
)
_OUT = "Folder of the results; the same command resumes what is unfinished, and more --tasks extend it."
_SET = "YAML file of several environments and agents, in the place of --env and --agent."
_LIMIT = "Else that of a checkpoint's training, or what the environment declares."
_NAMES = {"samples": ["--samples", "-n"], "task_ids": ["--task"], "options": ["--option"], "sinks": ["--sink"]}
"""Settings whose option has another name, or a second one."""

Tools = Annotated[list[str], typer.Option(help="Value of the environment's option tools; may be repeated.")]
Command = Annotated[str, typer.Option(help="Value of the environment's option command, for example of external.")]


def _with_settings(command: Callable[..., int], usual: EvalSettings = EvalSettings()) -> Callable[..., int]:  # noqa: B008
    """Give a command an option for each setting of an evaluation, in the place of its `**settings`."""
    signature = inspect.signature(command, eval_str=True)
    *parameters, others = signature.parameters.values()
    options = []
    sections: list[tuple[Any, str]] = [(usual, ""), (EpisodeLimits(), f" {_LIMIT}")]
    for defaults, more in sections:
        section: Any = type(defaults)
        texts = texts_of(section)
        for name, (kind, _) in kinds_of(section).items():
            if name == "limits":
                continue
            default, is_list = getattr(defaults, name), name in ("task_ids", "options", "sinks")
            flags = _NAMES.get(name, [f"--{name.replace('_', '-')}"] if default is False else [])
            option = typer.Option(*flags, help=f"{texts[name]}{more}")
            options.append(
                others.replace(
                    name=name,
                    kind=inspect.Parameter.KEYWORD_ONLY,
                    default=None if more else [] if is_list else default,
                    annotation=Annotated[list[str] if is_list else kind | None if more else kind, option],
                )
            )
    command.__signature__ = signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
    return command


@_with_settings
def evaluate(
    out: Annotated[Path, typer.Option(help=_OUT)],
    env: Annotated[str, typer.Option(help="Name or target of an environment.")] = "",
    agent: Annotated[str, typer.Option(help=_AGENT)] = "",
    set_file: Annotated[Path | None, typer.Option("--set", help=_SET)] = None,
    tools: Tools = [],  # noqa: B006 (typer reads it, nobody changes it)
    command: Command = "",
    as_json: Json = False,
    **settings: Any,
) -> int:
    """Measure an agent in an environment, or each of a set, and record every episode.

    Exits with 1 when no episode ended without a fault of the machinery, or nothing can be scored; of a set, when that
    holds for one of its evaluations, or one of them failed.
    """
    arguments = _arguments(env, agent, tools, command, settings)
    if set_file is not None:
        return _evaluate_set(set_file, out, arguments, as_json=as_json)
    if not env or not agent:
        raise UserError("an evaluation needs --env and --agent, or --set FILE.yaml with several of each")
    return _evaluate_one(out, arguments, as_json=as_json)


@functools.partial(_with_settings, usual=EvalSettings(split="train", samples=8, greedy=False))
def profile(
    out: Annotated[Path, typer.Option(help=_OUT)],
    env: Annotated[str, typer.Option(help="Name or target of an environment.")],
    agent: Annotated[str, typer.Option(help=_AGENT)],
    tools: Tools = [],  # noqa: B006 (typer reads it, nobody changes it)
    command: Command = "",
    as_json: Json = False,
    **settings: Any,
) -> int:
    """Measure how often an agent solves each training task, for --dataset.pass_rate of a run.

    It is an evaluation on the split train, which also writes profile.json. Exits with 1 when nothing was measured.
    """
    return _evaluate_one(out, _arguments(env, agent, tools, command, settings), as_json=as_json, is_profile=True)


def _arguments(env: str, agent: str, tools: list[str], command: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `evaluate_async` that differ from its defaults."""
    options = parse_options(settings.pop("options"), tools, command)
    defaults = vars(EvalSettings()) | dict.fromkeys(kinds_of(EpisodeLimits)) | {"task_ids": [], "sinks": []}
    values = {"env": env, "agent": agent, "options": options, **settings}
    return {name: value for name, value in values.items() if value != defaults.get(name, "")}


def _evaluate_one(out: Path, arguments: Mapping[str, Any], *, as_json: bool, is_profile: bool = False) -> int:
    from forge_env.cli.eval_output import show_result
    from forge_env.evaluation.api import evaluate_async
    from forge_env.evaluation.profile import write_profile
    from forge_env.evaluation.progress import LiveProgress

    progress = LiveProgress(quiet=as_json)
    with stdout_to_stderr(as_json), _resumable(out, progress):
        figures = run_async(evaluate_async(out=out, progress=progress, warn=note, **arguments)).figures
    result = {**figures, "out": str(out)}
    if is_profile and is_measured(result):
        result["profile"] = write_profile(out).counts
    emit(result) if as_json else show_result(result)
    return 0 if is_measured(result) else 1


def _evaluate_set(file: Path, out: Path, beside: Mapping[str, Any], *, as_json: bool) -> int:
    from forge_env.cli.eval_output import show_set
    from forge_env.evaluation.progress import LiveProgress
    from forge_env.evaluation.sets import evaluate_set_async

    if beside:
        raise UserError(f"{' and '.join(beside)} cannot stand beside --set {file}: the file holds them, under defaults")
    with stdout_to_stderr(as_json), _resumable(out, None):
        result = run_async(evaluate_set_async(file, out, progress=LiveProgress(quiet=as_json), warn=note))
    emit({**result.to_dict(), "out": str(out)}) if as_json else show_set(result)
    return 0 if all(row.result is not None and is_measured(row.result.figures) for row in result.rows) else 1


def is_measured(figures: Mapping[str, Any]) -> bool:
    return bool(figures["episodes"]) and "unscored" not in figures


@contextmanager
def _resumable(out: Path, progress: LiveProgress | None) -> Iterator[None]:
    """Say what is there when a signal ends the block."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        there = "the episodes that have ended" if progress is None else f"{progress.done} of {progress.total} episodes"
        is_begun = progress is None or progress.done
        note = f"{there} are in {out}; the same command resumes from there"
        last_words(note if is_begun else "interrupted before the end of the first episode")
        raise


def parse_options(option: Sequence[str], tools: Sequence[str] = (), command: str = "") -> dict[str, Any]:
    """Parse name=value pairs; `tools` and `command` are options that have a command-line option of their own.

    The name "headers.a" is the entry a of the dictionary that is the option headers.
    """
    pairs: list[tuple[str, Any]] = []
    for text in option:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--option {text!r} is not of the form name=value, for example --option level=2")
        pairs.append((name, value))
    if tools:
        pairs.append(("tools", tools[0] if len(tools) == 1 else list(tools)))  # one text may be a list with commas
    if command:
        pairs.append(("command", command))
    options = dict(reversed(pairs))
    for name, value in pairs:
        if options[name] != value:
            first, second = masked({name: options[name]}), masked({name: value})
            raise UserError(f"the option {name} is given twice, {first[name]!r} and {second[name]!r}: give one")
    return with_entries({}, dict(sorted(pairs, key=lambda pair: pair[0].count("."))))
