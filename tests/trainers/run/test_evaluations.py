"""Evaluations in the course of a run: which steps, with which weights, what is written down, and which was the best."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge_env.core.episode import Episode, Group, read_jsonl
from forge_env.core.errors import InvariantError, ServiceError
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import Kinds
from forge_env.rollout.rollout import GroupSpec
from forge_env.utils.settings import may_change, with_values
from tests.helpers.pages import page_of
from tests.helpers.plans import plan_of, refusal
from tests.trainers.episodes import turn
from trainers import grpo
from trainers.config import SHORT_OPTIONS, RunConfig
from trainers.run.evaluations import Evaluations
from trainers.run.rollouts import Rollouts
from trainers.run.run import Run
from trainers.run.run_record import RunRecord
from trainers.run.start import _agents
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan, tasks_of

OPTIONS = ("--env", "math", "--dataset.held_out", "3", "--dataset.tasks", "4", "--steps", "6")


class Measured(Rollouts):
    """Rollouts of a policy that is a function: of the tasks it solves those before `solves`."""

    solves = 1
    sampled_by = 0
    faulty = 0  # of the first tasks

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.asked: list[GroupSpec] = []

    async def run_group(self, spec: GroupSpec) -> Group:
        phase, _, index = spec.group_id.rpartition("/")
        assert phase.startswith("evaluation") and spec.agent in ("evaluated", "greedy") and spec.is_measured
        self.asked.append(spec)
        turns = (turn(1, prompt=0, version=self.sampled_by, starts_row=True),)
        reward = float(int(index) < self.solves)
        members = tuple(
            Episode(task=spec.task, turns=turns, reward=reward, id=f"{spec.group_id}/{i}", env=spec.env)
            for i in range(spec.count)
        )
        if int(index) < self.faulty:
            fault = {"reward": None, "outcome": Outcome.ENV_FAULT, "error": "no disk"}
            members = tuple(replace(member, **fault) for member in members)
        return Group(task=spec.task, episodes=members, id=spec.group_id)


class StillServices:
    """Services of which nothing moves."""

    is_starting = False
    deaths = ()

    def deadline(self, seconds: float) -> StillServices:
        return self

    async def fanout(self, endpoint: Any) -> list[Any]:
        return []


def open_measured(config: RunConfig, record: RunRecord) -> tuple[Run, Measured]:
    """A run without any process, whose engines have the weights of version 0."""
    plan, still = make_plan(config, grpo.GRPO), StillServices()
    weights: Any = SimpleNamespace(in_engines=0)
    rollouts = Measured(plan=plan, envs={"": still}, engines=still, weights=weights, record=record)  # type: ignore[arg-type]
    run_tasks, held_out = tasks_of(plan)
    tasks = {label: of_env.train for label, of_env in run_tasks.items()}
    run = Run(
        plan=plan,
        rollouts=rollouts,
        trainer=SimpleNamespace(tokens_trained=0),  # type: ignore[arg-type]
        weights=weights,
        record=record,
        evaluations=Evaluations(rollouts=rollouts, held_out=held_out, kinds=Kinds.of(tasks)),
        launcher=None,  # type: ignore[arg-type]
        model=record.folder,
        parameters=1,
        setup_seconds=0.0,
        train_tasks=tasks,
        checkpoint=None,
    )
    return run, rollouts


@contextmanager
def measuring(folder: Path, *options: str) -> Iterator[tuple[Run, Measured]]:
    """A run with these options, and its rollouts."""
    config = parse(grpo.Config, options, SHORT_OPTIONS)
    with RunRecord(folder, asdict(config)) as record:
        yield open_measured(config, record)


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[tuple[Run, Measured]]:
    with measuring(tmp_path, *OPTIONS, "--evaluation.interval", "2", "--evaluation.n", "2") as opened:
        yield opened


@pytest.fixture
def run(measured: tuple[Run, Measured]) -> Run:
    return measured[0]


@pytest.fixture
def policy(measured: tuple[Run, Measured]) -> Measured:
    return measured[1]


def test_the_first_and_the_last_weights_are_no_interval(run: Run) -> None:
    assert [step for step in range(10) if run.evaluations.is_due(step)] == [2, 4]
    never, _ = open_measured(with_values(run.plan.config, {"evaluation.interval": 0}), run.record)
    assert not any(map(never.evaluations.is_due, range(10)))


async def test_figures_are_metrics_and_episodes_are_kept(run: Run, policy: Measured, tmp_path: Path) -> None:
    await run.evaluations.evaluate("before", step=0)
    policy.solves, policy.sampled_by, run.weights.in_engines = 2, 7, 7
    await run.evaluations.evaluate_step(2)
    await run.evaluations.evaluate_step(2)  # a step that is written down is not measured again
    await run.evaluations.evaluate("tool_off", use_tools=False)
    await run.record.wait_for_writes()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["step"], line["version"]) for line in lines] == [
        ("evaluation", 0, 0),
        ("evaluation", 2, 7),
    ]
    assert lines[1]["success"] == lines[1]["reward"] == pytest.approx(2 / 3)
    assert lines[1]["success_low"] < 2 / 3 < lines[1]["success_high"]
    assert (lines[1]["episodes"], lines[1]["faults"]) == (6, 0)
    assert lines[1]["pass_at_2"] == lines[1]["pass_hat_2"] == pytest.approx(2 / 3)
    assert lines[1]["seconds/evaluation"] >= 0
    episodes = list(read_jsonl(tmp_path / "episodes/evaluation_000002.jsonl"))
    assert len(episodes) == 6 and [e.id for e in episodes] == [
        e.id for e in read_jsonl(tmp_path / "episodes/before.jsonl")
    ]


async def test_every_kind_of_task_has_its_success(run: Run, policy: Measured, tmp_path: Path) -> None:
    policy.solves = 2
    before = await run.evaluations.evaluate("before", step=0)
    await run.evaluations.evaluate_step(2)
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    by_kind = run.kinds.split(before.episodes)
    assert len(by_kind) > 1 and sum(first[f"episodes/{name}"] for name in by_kind) == first["episodes"] == 6
    for name, of_kind in by_kind.items():
        assert first[f"success/{name}"] == first[f"reward/{name}"] == of_kind.success_rate
        assert (first[f"success_low/{name}"], first[f"success_high/{name}"]) == of_kind.interval
    lines = [json.loads(line)["text"] for line in (tmp_path / "console.jsonl").read_text().splitlines()]
    assert f"by kind of task: {run.kinds.text(before)}" in lines


BOTH = ("--env=math", "--env=code_exec", "--steps=6", "--dataset.tasks=4", "--mixture.math.evaluation.n=2")


async def test_each_of_several_environments_has_its_figures_and_its_seeds(tmp_path: Path) -> None:
    options = (*BOTH, "--dataset.held_out=3", "--mixture.math.dataset.held_out=2")
    with measuring(tmp_path, *options) as (run, policy):
        await run.evaluations.evaluate("before", step=0)
        await run.evaluations.evaluate("tool_off", of=["code_exec"], use_tools=False)
    values = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert values["success"] == pytest.approx(2 / 5), "over the tasks of both"
    assert (values["success/math"], values["success/code_exec"]) == (1 / 2, pytest.approx(1 / 3))
    assert (values["episodes/math"], values["n/math"], values["n/code_exec"]) == (4, 2, 1)
    assert values["greedy/success/math"] == 1 / 2
    ids = [spec.group_id for spec in policy.asked]
    assert ids[:5] == ["evaluation/math/0", "evaluation/math/1", *(f"evaluation/code_exec/{i}" for i in range(3))]
    assert ids[-3:] == ids[2:5] and len({spec.seed for spec in policy.asked[:5]}) == 5
    summary = run.evaluations.summary()["evaluations"]["headline"]
    assert (summary["tasks"], summary["success_first"]) == (5, pytest.approx(2 / 5))


def test_the_faults_of_each_environment_end_an_evaluation_on_their_own(tmp_path: Path) -> None:
    for tasks, ends in (("20", False), ("40", True)):
        options = [*BOTH, f"--dataset.held_out={tasks}", "--evaluation.greedy=false"]
        with measuring(tmp_path / tasks, *options) as (run, policy):
            policy.faulty = 40
            if ends:
                with pytest.raises(ServiceError, match=r"evaluation/math: 32 groups in a row had faults only"):
                    asyncio.run(run.evaluations.evaluate("evaluation", step=0))
            else:
                assert asyncio.run(run.evaluations.evaluate("evaluation", step=0)).faults == 60


async def test_an_evaluation_with_weights_of_another_step_raises(run: Run, policy: Measured) -> None:
    policy.sampled_by = 1
    with pytest.raises(InvariantError, match=r"version 0 was to be evaluated, and \[1\] were"):
        await run.evaluations.evaluate_step(2)


async def test_the_best_step_is_in_the_summary_the_earlier_one_of_two(
    run: Run, policy: Measured, tmp_path: Path
) -> None:
    for step, solved in ((0, 1), (2, 3), (4, 3), (6, 2)):
        policy.solves = solved
        await run.evaluations.evaluate(f"evaluation_{step:06d}", step=step)
        is_better = solved == 3 and step == 2
        assert run.evaluations.is_best(step) == is_better
    for saved in (2, 6, 8):  # the weights of 0 and 4 are nowhere
        (tmp_path / "checkpoints" / f"step_{saved:06d}").mkdir(parents=True)
    run.record.metrics("evaluation", 8, {"success": 1.0 + 4e-16})  # rounding makes no better step
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "syst')  # another thread may be writing
    run.summarise({})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["best_step"], summary["best_success"]) == (2, 1.0)
    assert summary["best_success_ci95"][1] == 1.0 > summary["last_success_ci95"][1]


@pytest.mark.parametrize(("tasks", "verb"), [("3", "do not differ"), ("40", "differ")])
async def test_the_summary_says_whether_the_best_and_the_last_step_differ(
    tmp_path: Path, tasks: str, verb: str
) -> None:
    options = (*OPTIONS, "--evaluation.interval", "2", "--dataset.held_out", tasks)
    with measuring(tmp_path, *options) as (run, policy):
        for step, solved, phase in ((2, int(tasks), "evaluation_000002"), (6, int(tasks) // 2, "after")):
            policy.solves = solved
            await run.evaluations.evaluate(phase, step=step)
        (tmp_path / "checkpoints" / "step_000002").mkdir(parents=True)
        run.summarise({})
    summary = json.loads((tmp_path / "summary.json").read_text())
    change = summary["last_minus_best"]
    assert change["difference"] == pytest.approx(summary["last_success"] - summary["best_success"])
    assert (change["ci95"][1] < 0) == (verb == "differ")
    said, low = (tmp_path / "console.jsonl").read_text(), summary["best_success_ci95"][0]
    assert f"the best evaluated step is 2: success 1.000 [{low:.3f}, 1.000]; the last is 6: " in said
    assert f"on the same {tasks} tasks they {verb}: {change['difference']:+.3f} [" in said


def test_no_step_is_kept_for_its_success_if_only_the_newest_are_wanted(run: Run, tmp_path: Path) -> None:
    run.record.metrics("evaluation", 2, {"success": 1.0})
    (tmp_path / "checkpoints" / "step_000002").mkdir(parents=True)
    assert run.evaluations.is_best(2) and run.evaluations.step_to_keep() == 2
    never, _ = open_measured(with_values(run.plan.config, {"checkpoint.keep_best": False}), run.record)
    assert not never.evaluations.is_best(2) and never.evaluations.step_to_keep() is None


def test_a_run_without_evaluations_has_no_best_step(run: Run, tmp_path: Path) -> None:
    run.record.metrics("evaluation", 0, {"faults": 3.0, "episodes": 0.0})  # nothing could be measured
    run.summarise({})
    assert json.loads((tmp_path / "summary.json").read_text())["best_step"] is None


def test_nothing_that_was_measured_is_no_figure() -> None:
    fault = Episode(task=Task(prompt=()), outcome=Outcome.ENV_FAULT, reward=None, id="e/0")
    assert Evaluation(episodes=(fault,)).metrics() == {"episodes": 0.0, "timeouts": 0.0, "faults": 1.0}
    assert str(Evaluation(episodes=(fault,))) == "not measured: all 1 episodes ended by faults"


@pytest.mark.parametrize("in_waves", [False, True])
def test_an_evaluation_ends_by_the_rule_of_faults(tmp_path: Path, in_waves: bool) -> None:
    options = ["--env", "math", "--dataset.held_out", "40", "--evaluation.greedy", "false"]
    options += ["--training.deterministic"] * in_waves
    with measuring(tmp_path, *options) as (run, policy):

        async def run_wave(specs: Sequence[GroupSpec]) -> Sequence[Group]:
            return [await policy.run_group(spec) for spec in specs]

        policy.run_wave = run_wave  # type: ignore[method-assign]
        policy.faulty = 31
        result = asyncio.run(run.evaluations.evaluate("evaluation", step=0))
        assert (len(result.attempts), result.faults) == (9, 31)
        policy.faulty = 40
        with pytest.raises(ServiceError, match=r"evaluation: 32 groups in a row had faults only; .*: no disk"):
            asyncio.run(run.evaluations.evaluate("evaluation", step=0))


SETS = (
    *("--evaluation.temperature", "0.5", "--evaluation.top_p", "0.9"),
    *("--evaluation.sets.hard.options.level", "2", "--evaluation.sets.hard.tasks", "2"),
)


async def test_every_figure_has_its_own_metrics_and_what_it_depends_on(tmp_path: Path) -> None:
    options = (*OPTIONS, *SETS, "--grpo.temperature", "0.7", "--evaluation.n", "2")
    plan_of(*options).check()
    with measuring(tmp_path, *options) as (run, policy):
        headline = await run.evaluations.evaluate("before", step=0)
        policy.solves = 2
        await run.evaluations.evaluate("after", step=6)
        run.summarise({})
    assert len(headline.episodes) == 6 and list(run.evaluations.held_out) == ["", "hard", "greedy", "hard.greedy"]
    assert [task.id for task in run.evaluations.held_out["hard"][0].tasks] == [
        task.id for task in run.evaluations.held_out["hard.greedy"][0].tasks
    ]
    asked = list(
        dict.fromkeys(
            (spec.group_id.rpartition("/")[0], spec.agent, spec.count, str(spec.env_options)) for spec in policy.asked
        )
    )
    hard = str(dict(run.evaluations.held_out["hard"][0].env_options))
    assert asked == [
        ("evaluation", "evaluated", 2, "{}"),
        ("evaluation/hard", "evaluated", 2, hard),
        ("evaluation", "greedy", 1, "{}"),
        ("evaluation/hard", "greedy", 1, hard),
    ]
    first, last = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["temperature"], first["top_p"], first["n"]) == (0.5, 0.9, 2)
    assert (first["greedy/temperature"], first["greedy/n"], first["sets/hard/top_p"]) == (0, 1, 0.9)
    assert last["success"] == last["greedy/success"] == pytest.approx(2 / 3)
    assert last["sets/hard/success"] == last["sets/hard/greedy/success"] == 1.0
    whole = json.loads((tmp_path / "summary.json").read_text())
    assert (whole["greedy_success_before"], whole["greedy_success_after"]) == (
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )
    assert run.evaluations.greedy_change == "held-out success at temperature 0: 0.333 before, 0.667 after"
    summary = whole["evaluations"]
    assert list(summary) == ["headline", "hard", "greedy", "hard.greedy"]
    assert summary["hard"]["options"] == {"level": "2"} and summary["headline"]["options"] == {}
    assert summary["hard"]["tasks"] == 2 and summary["hard"]["success_first"] == 0.5
    assert summary["headline"]["temperature"] == 0.5 and summary["greedy"]["temperature"] == 0
    if page := page_of(tmp_path):
        assert "after training; hard, greedy (temperature 0)" in page
        assert "before training (temperature 0.5, top_p 0.9)" in page
    assert len(list(read_jsonl(tmp_path / "episodes/after.hard.greedy.jsonl"))) == 2


@pytest.mark.parametrize("options", [("--evaluation.greedy", "false"), ("--evaluation.temperature", "0")])
async def test_there_is_no_second_figure_where_it_is_switched_off_or_would_be_the_first(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with measuring(tmp_path, *OPTIONS, *options) as (run, policy):
        await run.evaluations.evaluate("before", step=0)
        assert list(run.evaluations.held_out) == [""] and len(policy.asked) == 3
        assert run.evaluations.greedy_change == ""


# ---- settings ----


PACE = "--training.sync_interval 2 --training.staleness 1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--evaluation.sets.greedy.tasks 3", "'greedy' is no name of a set"),
        ("--evaluation.sets.hard.task 3", "split, tasks and options.NAME, and not 'task'. Did you mean tasks?"),
        ("--evaluation.sets.hard.options.levle 3", "no option 'levle'"),
        ("--evaluation.top_p 1.5", "top_p is 1.5; it must be above 0 and at most 1"),
        ("--evaluation.top_p 0", "top_p is 0.0; it must be above 0"),
        ("--evaluation.temperature 0 --evaluation.n 4", "set --evaluation.n to 1"),
        (f"{PACE} --evaluation.interval 3", "so evaluate at a multiple of 2"),
    ],
)
def test_what_evaluations_cannot_be(arguments: str, words: str) -> None:
    """The engines get the weights of every second step: others cannot be evaluated."""
    assert words.lower() in refusal(*OPTIONS, arguments).lower()


def test_weights_that_the_engines_get_can_be_evaluated() -> None:
    plan_of(*OPTIONS, PACE, "--evaluation.interval=4").check()


def test_the_training_samples_at_its_own_temperature_and_of_all_tokens() -> None:
    plan = plan_of(*OPTIONS, *SETS, "--grpo.temperature=0.7")
    agents = _agents(plan, plan.share(""), "model", None)  # type: ignore[arg-type]
    sampling = {
        name: {key: value for key, value in arguments.items() if key in ("temperature", "top_p")}
        for name, (_, arguments) in agents.items()
        if name != "expert"
    }
    assert sampling == {
        "policy": {"temperature": 0.7},
        "evaluated": {"temperature": 0.5, "top_p": 0.9},
        "greedy": {"temperature": 0.0},
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--env math --evaluation.interval 2", "--evaluation.interval need --sft.data"),
        (
            "--sft.data chats.jsonl --evaluation.interval 2",
            "--evaluation.interval needs an environment to measure success in",
        ),
        ("--training.learning_rate 1e-4", "no effect on demonstrations: set --warmup.learning_rate"),
        ("--training.lr_schedule cosine", "no effect on demonstrations: it needs --sft.data"),
        ("--sft.epochs 2", "--sft.epochs needs --sft.data: leave it out on demonstrations"),
    ],
)
def test_supervised_training_says_what_it_lacks(arguments: str, words: str) -> None:
    assert words in refusal(arguments, algorithm="sft")


def test_a_resumed_run_may_have_another_interval_and_measures_the_same() -> None:
    assert [name for name in may_change(grpo.Config()) if "evaluation" in name] == ["evaluation.interval"]
