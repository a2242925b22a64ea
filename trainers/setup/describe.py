"""Describes a plan: `dry_run` prints all of it, and the start of a run says some of its lines."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from agents.generator.engine_args import approximations
from agents.served_tokenizer import PLAIN
from forge_env.registry.contrib import rows
from forge_env.utils.secret_values import masked, masked_text
from forge_env.utils.settings import BY_CASE, leaves
from trainers.algorithm import kl_warning
from trainers.families.shape import ModelShape
from trainers.model.new_rows import untrained_marks
from trainers.settings.distill import SELF
from trainers.setup.card import gib, host_parts
from trainers.setup.checks.no_effect import no_effect
from trainers.setup.mixture import differences
from trainers.setup.options.defaults import case_of
from trainers.setup.placement import FROZEN
from trainers.setup.run_plan import EnvShare, RunPlan
from trainers.setup.run_tasks import HELD_OUT_TASKS, TRAIN_TASKS

FAR, FEW = 30, 8
"""A learning rate that is FAR times the usual one, or a part of it, is warned of; so is a limit of tokens per turn that
is below the usual one by the factor FEW."""
AT_START = ("template", "importance ratio", "weights", "engine", "adapters", "new rows", "defaults")
"""The lines that the start of a run says, beside the warnings."""
RATE = 1e11
"""FLOPs a second of two cores of a server, in float32. Measured with SmolLM2-135M-Instruct, 64 episodes of at most 64
tokens: 400 sampled tokens a second, which are 1.1e11, and training at 1e11 to 2.5e11. The demo's tiny model takes 1.3 s
a step, where the estimate says 2."""
SAMPLE, TRAIN, TRAIN_ADAPTERS = 2, 6, 4
"""FLOPs of a token and a parameter that it is multiplied with (arXiv 2001.08361, table 1): a forward pass, and a step
of the trainer. Frozen weights need no gradients of their own."""
REFERENCES = {
    "": "none: nothing asks for it",
    "generator": "the generator's own logprobs: there is no ref_model",
    "model": "the trainer without its adapters, or with those that it started from: there is no second model",
}
"""`Objective.kl_reference` in words, if no reference model is started."""


def dry_run(plan: RunPlan) -> int:
    """Print the plan of a run; returns exit code 0, or 2 if the run could not start."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 120
    processes = _table(["process", "where", "part", "memory", "of which"], _processes(plan))
    starts = [masked_text(f"no: {problem}") for problem in plan.problems] or [
        "yes; this was a dry run, and nothing was started"
    ]
    sections: dict[str, Sequence[RenderableType]] = {
        "Settings (* is not the default)": [_table(["", "setting", "value", "default"], describe_settings(plan))],
        "What they come to": [_table(["", ""], describe_plan(plan))],
        "Processes, and estimates of their memory in GiB": [processes, *_totals(plan)],
        "Missing on this machine": [f"  - {text}" for text in plan.missing or ["nothing"]],
        "Whether it starts": [f"  - {text}" for text in starts],
    }
    for title, parts in sections.items():
        console.print(f"\n{title}", style="bold")
        for part in parts:
            console.print(part)
    if plan.problems:
        print(masked_text(f"error: {plan.problems[0]}"), file=sys.stderr)
    return 2 if plan.problems else 0


def describe_settings(plan: RunPlan) -> list[tuple[str, ...]]:
    """A row for each setting: "*" if it is not the default, name, value, and the default if it is another."""
    usual = plan.usual
    rows: list[tuple[str, ...]] = []
    settings = {setting.name: setting.value for setting in leaves(plan.config)}
    for label, name, value, of_run in differences(plan.config):
        settings[f"mixture.{label}.{name}"], usual[f"mixture.{label}.{name}"] = value, of_run
    for name, value in settings.items():
        if name == "mixture":
            continue
        text = f"{masked(value, name.split('.'))!r}"
        rows.append(("", name, text) if value == usual[name] else ("*", name, text, f"{usual[name]!r}"))
    return rows


def describe_plan(plan: RunPlan) -> list[tuple[str, str]]:
    """What follows from the settings: the name and the text of each line."""
    lines = [
        ("model", _describe_model(plan)),
        *(("template", text) for text in plan.model.template),
        *(("environment", _describe_env(share, plan)) for share in plan.environments),
        *(("data", text) for text in plan.about_data),
        *(("audit", text) for text in _describe_audit(plan)),
        *_describe_steps(plan),
        ("cost of a step", describe_cost(plan)),
        ("weights", plan.store_reason if plan.has_engine else ""),
        ("engine", plan.about_engine),
        ("adapters", _describe_adapters(plan)),
        ("new rows", _describe_new_rows(plan)),
        ("precision", _describe_precision(plan)),
        *(("defaults", text) for text in _describe_defaults(plan)),
        *(("no effect", text) for text in no_effect(plan)),
        *(("warning", text) for text in _describe_warnings(plan)),
    ]
    return [(name, masked_text(text)) for name, text in lines if text]


def describe_services(plan: RunPlan) -> str:
    """The services that are up once all processes are started, and the kind of device of each."""
    services = ("envs", "generator", "trainer", *FROZEN)
    processes = [process for process in plan.placement.processes if process.service in services]
    devices = Counter((process.service, "GPU" if process.gpu is not None else "CPU") for process in processes)
    places = [f"{name} on {device}{f' x {count}' if count > 1 else ''}" for (name, device), count in devices.items()]
    return f"services are up{', the engine is starting' if plan.has_engine else ''}: {', '.join(places)}"


def _describe_model(plan: RunPlan) -> str:
    shape, where = plan.model.shape, plan.model.where
    if shape is None:
        return f"{where}; its sizes are not known here"
    shared = " with a shared one" if shape.shared_size else ""
    experts = f", {shape.num_experts} experts in each, of which {shape.num_experts_per_tok} compute a token{shared}"
    layers = f"{shape.num_hidden_layers} layers of {shape.hidden_size}{experts if shape.num_experts else ''}"
    unread = f"; {plan.model.unread} mtp.* weights, which guess further tokens, are left out, of exports too"
    sizes = f"{shape.parameters:,} parameters, {layers}, vocabulary {shape.vocab_size:,}"
    return f"{where}: {sizes}{unread if plan.model.unread else ''}"


def _describe_env(share: EnvShare, plan: RunPlan) -> str:
    data, name = share.config.dataset, share.config.env.name
    if plan.has_several:
        name = f"{'' if name == share.label else f'{share.label}: '}{name}"
        name += f", {plan.part(share):.0%} of the {plan.config.training.mixture_by}"
    if share.tasks is not None:  # the lines on the data have the counts
        return name
    most = "all" if data.path and not data.streaming else f"at most {TRAIN_TASKS:,}"
    source = f"the split {data.split} of {data.path}" if data.path else "its own tasks"
    return f"{name}, {data.tasks or most} of {source}, {data.held_out or f'at most {HELD_OUT_TASKS}'} held out"


def _describe_audit(plan: RunPlan) -> Iterator[str]:
    """Yield what is attacked before the first step; nothing of a run that goes on, which has done it."""
    for share in () if plan.is_supervised or plan.config.resume else plan.environments:
        settings = share.config.audit
        for row in rows("audits").values():
            count = row.load()(share.factory).tasks_by_default if settings.tasks == BY_CASE else settings.tasks
            if count:
                yield from share.about(
                    [
                        f"known cheats attack at most {count:,} training tasks before the first step, within "
                        f"{settings.seconds:g} s; a task that rewards one in full is left out"
                    ]
                )


def _describe_steps(plan: RunPlan) -> list[tuple[str, str]]:
    """Steps of a run; of a policy gradient also its groups, and the models that it compares."""
    steps = f"{plan.steps:,} optimizer steps" if plan.steps else "as many steps as the epochs of the data have"
    if plan.objective is None:
        return [("run", steps)]
    groups, size, kind = plan.config.training.groups_per_step, plan.objective.group_size, plan.objective.kl_reference
    interval = f"every {plan.window} steps" if plan.window > 1 else "every step"
    old = "engine's logprobs" if plan.old_logprobs == "generator" else f"trainer's logprobs, frozen before {interval}"
    device = "GPU" if plan.config.services.ref_model.with_gpus else "CPU"
    again = ", and as many again for each summary" if plan.compacts else ""
    return [
        (
            "optimizer step",
            f"{groups} groups of {size} episodes, at most {groups * size * plan.config.env.max_tokens:,} tokens{again}",
        ),
        ("run", f"{steps}: {groups * plan.steps:,} groups, {groups * size * plan.steps:,} episodes"),
        ("staleness", f"at most {plan.config.training.most_behind} steps between sampling a group and training on it"),
        ("importance ratio", f"against the {old}"),
        ("credit", _describe_credit(plan)),
        ("KL reference", f"a frozen model on {device}" if plan.placement.has_reference else REFERENCES[kind]),
        ("teacher", _describe_teacher(plan)),
        (
            "routing replay",
            "the trainer computes with the experts that the engine chose" if plan.replays_routes else "",
        ),
    ]


def _describe_teacher(plan: RunPlan) -> str:
    """The models that are distilled; "" without one."""
    distill, device = plan.config.distill, "GPU" if plan.config.services.teacher.with_gpus else "CPU"
    if not plan.config.teachers:
        return ""
    over = f", over {distill.top_k} tokens," if distill.top_k else ""
    beside = "rewards are only measured" if distill.only else "rewards count as well"
    teachers = {"": "none", SELF: "the policy itself, with a hint in its prompt"}
    for name, model in plan.teachers.items():
        sizes = f", {model.shape.parameters:,} parameters" if model.shape else ""
        teachers[name] = f"{model.where}{sizes}, frozen, on {device}"
    where = [text for share in plan.environments for text in share.about([teachers[share.config.distill.teacher]])]
    return f"{'; '.join(where)}; the reverse KL of each token{over} counts {distill.coef:g} times; {beside}"


def _describe_credit(plan: RunPlan) -> str:
    """What a turn answers for; "" if each answers for its whole episode."""
    assert plan.objective is not None
    if plan.objective.credit == "episode":
        return ""
    if reward := plan.config.training.reward:
        return f"every turn answers for all of --reward {reward}; the environment's step rewards are no part"
    return "a turn answers for the reward less the environment's step rewards of the turns before it"


def _describe_adapters(plan: RunPlan) -> str:
    """The adapters that are trained, and their way to the engine; "" if all weights are trained."""
    shape, lora, dtype = plan.model.shape, plan.lora, plan.engine_dtype
    if lora is None:
        return ""
    count = f"{lora.parameters(shape):,} of {shape.parameters:,} parameters; " if shape else ""
    choice, reason = plan.config.lora.choose_publish(dtype, shape)
    merging = f"merged in float32 for the engine, and cast to its {dtype}"
    way = merging if choice == "merged" else "the engine computes with the adapters, which alone are sent to it"
    return f"{count}{way}: {reason}"


def _describe_new_rows(plan: RunPlan) -> str:
    marks = untrained_marks(plan.model.untrained_tokens)
    if not marks or plan.config.model.new_rows == "off":
        return ""
    return f"{marks} get rows of their own, in a copy of the model in the run's folder"


def _describe_precision(plan: RunPlan) -> str:
    dtype = plan.trainer_dtype
    weights = "float32 adapters and frozen weights in its dtype" if plan.lora else "float32 weights"
    head = ", output layer in float32" if plan.config.training.head_dtype(dtype) != dtype else ""
    engine = f", engine {plan.engine_dtype}" if plan.has_engine else ""
    return f"trainer {dtype} over {weights}{head}{engine}"


def _describe_defaults(plan: RunPlan) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, default in plan.defaults.items():
        if default.reason and default.is_taken:
            by_reason.setdefault(default.reason, []).append(f"{name} {default.value:g}")
    if plan.config.training.warmup_steps == BY_CASE and plan.steps:
        by_reason.setdefault(case_of(plan.config).name, []).append(f"training.warmup_steps {plan.rising_steps}")
    return [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]


def _describe_warnings(plan: RunPlan) -> list[str]:
    """Unusual settings, a penalty that does nothing, and settings of vLLM that make logprobs inexact."""
    case, limit, warnings = case_of(plan.config), "env.max_turn_tokens", list[str]()
    for name in ("training.learning_rate", "warmup.learning_rate", limit):
        value, default = attrgetter(name)(plan.config), plan.defaults[name]
        usual = min(default.value, case.limits.max_turn_tokens) if name == limit else default.value
        low, high = (usual / FEW, math.inf) if name == limit else (usual / FAR, usual * FAR)
        if default.reason and not low <= value <= high:
            side, cut = "below" if value < low else "above", "; a longer turn is cut off" if name == limit else ""
            context = case.name if name == limit else default.reason
            warnings.append(f"--{name} is {value:g}, far {side} what is usual for {context}: {usual:g}{cut}")
    if plan.model.tools_problem:
        warnings.append(
            f"the chat template {plan.model.tools_problem}: an environment with tools needs --renderer.tools text"
        )
    if plan.model.tokenizer:
        warnings.append(f"{plan.model.tokenizer}; the model that the run exports names {PLAIN}, and has one meaning")
    if (marks := untrained_marks(plan.model.untrained_tokens)) and plan.config.model.new_rows == "off":
        warnings.append(
            f"{marks} of the chat template were never trained: their rows equal the rows of other tokens, so that the "
            "model cannot tell them apart; --model.new_rows on gives them rows of their own"
        )
    if warning := kl_warning(plan.config):
        warnings.append(warning)
    if plan.objective and (inexact := approximations(plan.engine.engine_args)):
        warnings.append(
            f"{', '.join(inexact)}: the engine's logprobs differ from the trainer's by more than rounding; each step "
            "says by how much (mean_abs_logprob_difference)"
        )
    return warnings


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if any(columns) else None, show_header=any(columns), pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == "*" else None)
    return table


def _processes(plan: RunPlan) -> list[list[str]]:
    rows = []
    for process, memory in plan.processes:
        siblings = [other for other, _ in plan.processes if other.service == process.service]
        replica = f"_{process.replica}" if any(other.replica for other in siblings) else ""  # as logs are named
        rank = f" {process.rank}" if any(other.rank for other in siblings) else ""
        size = ["?"] if memory is None else [gib(memory.total), str(memory)] if memory.total else []
        rows.append([f"{process.service}{replica}{rank}", process.where, process.part, *size])
    return rows


def _totals(plan: RunPlan) -> list[str]:
    """What each GPU holds, and the host if processes on GPUs keep something there."""
    totals = [f"{card}{f'; it has {gib(plan.card)}' if plan.card else ''}" for card in plan.cards]
    if any(memory.on_host for _, memory in plan.processes if memory):
        parts = host_parts(plan.processes)
        each = " + ".join(f"{name} {gib(size)}" for name, size in parts.items())
        totals.append(f"memory of the host: {gib(sum(parts.values()))} = {each}")
    return totals


def describe_cost(plan: RunPlan) -> str:
    """The cost of a step if all its episodes have the maximal length; "" for a run on GPUs, or of unknown sizes."""
    services = plan.config.services
    is_on_cpu = not services.trainer.with_gpus and not services.generator.with_gpus
    if not is_on_cpu or plan.objective is None or plan.shape is None:
        return ""
    tokens = plan.config.training.groups_per_step * plan.objective.group_size * plan.config.env.max_tokens
    flops = tokens * flops_of_token(plan.shape, has_adapters=plan.lora is not None)
    bound = "with one row an episode" if plan.compacts else "at most"
    steps = f", and {duration(flops / RATE * plan.steps)} for all steps" if plan.steps else ""
    return (
        f"{bound} {flops:.0e} FLOPs, with {tokens:,} tokens that are read or sampled, and trained on: roughly "
        f"{duration(flops / RATE)} on two cores{steps}; less by the part that episodes are shorter"
    )


def flops_of_token(shape: ModelShape, *, has_adapters: bool = False) -> int:
    """FLOPs to sample a token and to train on it, without attention to the tokens before it.

    It is multiplied with the parameters of its layers and experts, and with the output layer.
    """
    multiplied = shape.num_hidden_layers * shape.active_layer_parameters + shape.vocab_size * shape.hidden_size
    return (SAMPLE + (TRAIN_ADAPTERS if has_adapters else TRAIN)) * multiplied


def duration(seconds: float) -> str:
    """Seconds to one digit, in words.

    >>> [duration(seconds) for seconds in (0.3, 2.4, 340.0, 9_000.0, 400_000.0)]
    ['1 s', '2 s', '6 minutes', '2 hours', '5 days']
    """
    if seconds < 60:
        return f"{max(1, float(f'{seconds:.0e}')):.0f} s"
    units = {"minutes": 60.0, "hours": 3600.0, "days": 86400.0}
    unit = "minutes" if seconds < 5400 else "hours" if seconds < 129_600 else "days"
    return f"{float(f'{seconds / units[unit]:.0e}'):,.0f} {unit}"
