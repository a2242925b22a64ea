"""Whole runs, as a user starts them: real engine, trainer, store, sandbox; nothing is left, however they end."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from agents.renderer.tokenizer import FastTokenizer
from forge_env.core.episode import Episode, read_jsonl
from forge_env.records.run_files import episode_files, steps_of
from tests.helpers.model_folders import change_weights, make_model_folder
from tests.helpers.pages import MEASURED, OBSERVED, data_of, page_of
from tests.helpers.runs import (
    DEADLINE,
    REPOSITORY,
    SHORT,
    UNTRAINED,
    Start,
    json_lines,
    records,
    steps_taken,
    summary_of,
)
from tests.helpers.waiting import wait_until


def test_two_steps_of_grpo(start: Start, tmp_path: Path) -> None:
    """The whole loop, and everything that it promises to leave behind; with a reward from which nothing is learned."""
    (tmp_path / "constant.py").write_text("def half(episode):\n    return 0.5\n")
    run = start(
        "trainers.grpo", "--env", "code_exec", "--steps", "2", "--tasks", "64", "--dataset.held_out", "8",
        "--training.batch_size", "4", "--grpo.n_samples", "4",
        "--warmup.steps", "6", "--warmup.learning_rate_warmup", "3", "--warmup.demonstrations", "16",
        "--warmup.probe_tasks", "4", "--warmup.probe_every", "6",
        "--training.entropy_coef", "0.01",  # so that each step trains, whatever its rewards
        *MEASURED, "--verbose", "--reward", f"{tmp_path}/constant.py:half",
    )  # fmt: skip
    console = run.ends_with(0)
    for phrase in ("held-out success before", "with the tool switched off", "grpo 2/2", "tokens/s", "user:"):
        assert phrase in console
    assert re.match(r" *\d+\.\d s  trainers.grpo: importing its packages", console)
    assert page_of(run.output) is None or console.rstrip().endswith(f"forge-env view {run.output}")
    _check_start(run.output, console, _PHASES | _RL_PHASES)
    summary = summary_of(run.output)
    assert summary["env"] == "code_exec" and summary["algorithm"] == "grpo" and summary["steps"] == 2
    for name in ("seed", "success_before", "success_after", "setup_seconds", "train_seconds", "tokens_generated"):
        assert name in summary
    assert summary["tokens_trained"] > 0 and summary["model_parameters"] > 100_000
    assert summary["versions"]["torchtitan"]
    _check_episodes(run.output)
    steps = json_lines(run.output / "metrics.jsonl")
    assert steps_taken(run.output) == [1, 2]
    for step in records(run.output):
        assert step["mean_abs_logprob_difference"] <= 1e-5  # trainer and engine, in the run itself
        assert step["training_reward"] == 0.5 and step["training_reward_std"] == step["groups_with_signal"] == 0
        assert step["staleness_max"] == step["signal/share"] == 0
        assert step["visits/unseen"] >= 4 * step["step"], "each group has a task that none before it had"
        assert step["delivery/difference"] <= 1e-5 if step["step"] > 1 else "delivery/difference" not in step
        assert step["engine/prompt_tokens"] > 0 and 0 <= step["engine/prefix_hit_rate"] < 1
        assert 0 < step["engine/cache_usage"] < 1
        assert step["engine/preemptions"] == 0, "the cache has room for all"
        assert 0 < step["engine/thread_busy"] < 1 and 0 < step["engine/worker_share"] < 1
        assert 0 < step["engine/us_per_request"] < 1e5
    if OBSERVED:
        _check_findings(run.output, console, "rewards_constant")
        _check_observed(run.output, steps, summary)
    evaluated = {step["step"]: step["success"] for step in steps if step["phase"] == "evaluation"}
    assert evaluated == {0: summary["success_before"], 2: summary["success_after"]}
    _check_kinds(run.output, steps, summary)
    learned = json_lines(run.output / "trained.jsonl")
    trained = list(read_jsonl(run.output / "episodes" / "train.jsonl"))
    assert [line["episode"] for line in learned] == [episode.id for episode in trained]
    assert [len(line["advantages"]) for line in learned] == [len(episode.turns) for episode in trained]
    if page := page_of(run.output):
        _check_page(page, summary, trained)
    assert [path.name for path in (run.output / "checkpoints").iterdir()] == ["step_000002"]
    _check_export(run.output / "model")


@pytest.mark.slow
def test_siblings_that_are_compared_and_a_reward_vector(start: Start, tmp_path: Path) -> None:
    """Two steps whose advantages are those of the parts: one of the environment, and one of a comparison."""
    (tmp_path / "own.py").write_text(
        "async def place(episodes):\n    return [float(n) for n in range(len(episodes))]\n"
    )
    run = start(
        "trainers.grpo", "--env", "math", "--steps", "2", *UNTRAINED, *SHORT, "--evaluation.n", "2",
        "--training.batch_size", "4", "--grpo.n_samples", "4", "--group-reward", f"{tmp_path}/own.py:place",
        "--grpo.reward_parts.correct", "1", "--grpo.reward_parts.place.weight", "0.5",
    )  # fmt: skip
    run.ends_with(0)
    steps = records(run.output)
    assert [(line["groups_with_signal"], line["grad_norm"] > 0) for line in steps] == [(4, True)] * 2
    learned = json_lines(run.output / "trained.jsonl")
    advantages = {line["episode"]: line["advantages"][0] for line in learned}
    played = {episode.id: episode for episode in read_jsonl(run.output / "episodes" / "train.jsonl")}
    assert len(played) == 2 * 4 * 4
    for name, episode in played.items():
        place = int(name.rpartition("/")[2])
        assert episode.rewards["place"] == place and episode.success == (episode.reward - place >= 1)
        if not any(played[f"{episode.group_id}/{n}"].success for n in range(4)):
            assert advantages[name] == pytest.approx(0.5 * (place - 1.5) / 1.291, abs=1e-3)
    assert {line["reward/place/mean"] for line in records(run.output, "evaluation")} == {0.5}


@pytest.mark.slow
def test_summaries_are_sampled_and_trained_on(start: Start) -> None:
    """Two steps on chains that exceed the context, after a warm-up that has seen the expert's summaries."""
    run = start(
        "trainers.grpo", "--env", "benchmarks.compaction:Boxes", "--context.compact_at", "0.6", "--steps", "2",
        "--warmup.steps", "60", "--warmup.probe_tasks", "16", "--dataset.held_out", "16", "--dataset.tasks", "256",
        "--training.batch_size", "4", "--grpo.n_samples", "4", "--training.signal_error", "0",
    )  # fmt: skip
    run.ends_with(0, 3, seconds=2 * DEADLINE)  # 3: no group of so few had a signal
    played = {phase: [*read_jsonl(file)] for phase, file in episode_files(run.output).items()}
    with_summaries = [e for e in played["demonstrations"] if any(turn.is_summary for turn in e.turns)]
    assert with_summaries and all(len(row.token_ids) <= 144 for e in with_summaries for row in e.supervised_rows)
    trained = {e.id: e for e in played["train"]}
    learned = json_lines(run.output / "trained.jsonl")
    summaries = 0
    for line in learned:
        turns = trained[line["episode"]].turns
        assert len(turns) == len(line["advantages"]) and len(set(line["advantages"])) == 1
        summaries += sum(turn.is_summary and turn.kind == "sampled" for turn in turns)
    assert summaries > 0


def _check_observed(output: Path, records: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """The timeline has the work of the run in its order, TensorBoard has the records, and the machine is measured."""
    trace = json.loads((output / "trace.json").read_text())
    assert {event["name"] for event in trace} >= {"thread_name", "group 0", "optimizer step", "publish", "pull"}
    changes = [event for event in trace if event["name"] in ("optimizer step", "publish")]
    changes = [event["name"] for event in sorted(changes, key=lambda event: event["ts"])]
    assert ("publish", "publish") not in itertools.pairwise(changes), "the same weights were published twice"
    assert list((output / "tensorboard").iterdir())
    assert summary["peak_memory_bytes"] > 2**28
    measured = [record for record in records if record["phase"] == "system"]
    wanted = {"memory_bytes/generator", "memory_bytes/trainer", "cpu_percent/envs"}
    assert any(wanted <= sample.keys() for sample in measured), "of one at the end, a process may just have ended"


UNLEARNED = {
    "too_hard": ("--warmup.steps", "0"),
    "truncated": ("--warmup.steps", "0", "--env.max_turn_tokens", "4"),
    "mismatch": ("--training.mismatch_alarm", "1e-12"),  # without a warm-up no row would be computed
    "falling": ("--training.learning_rate", "0.2", "--training.warmup_steps", "0", "--warmup.until_success", "0.4"),
}


@pytest.mark.slow
@pytest.mark.skipif(not OBSERVED, reason="nothing here says why a run does not learn")
@pytest.mark.parametrize("kind", UNLEARNED)
def test_a_run_that_is_made_to_fail_says_why(start: Start, kind: str) -> None:
    run = start(
        "trainers.grpo", "--env", "code_exec", "--steps", "8", "--tasks", "1024", "--dataset.held_out", "64",
        "--training.batch_size", "8", "--grpo.n_samples", "4", "--training.signal_error", "0", *UNLEARNED[kind],
    )  # fmt: skip
    console = run.ends_with(0, 3)  # 3: no step had a gradient
    _check_findings(run.output, console, kind)


def _check_findings(output: Path, console: str, kind: str) -> None:
    """The finding is said with its step, kept in both files, and shown in the report."""
    for name in ("run.json", "summary.json"):
        found = {finding["kind"]: finding for finding in json.loads((output / name).read_text())["findings"]}
        assert kind in found, found
    finding = found[kind]
    said = f"warning: step {finding['step']}: this may keep the run from learning: "
    assert said in console and f"Likely cause: {finding['cause']}" in console
    assert f"may have kept this run from learning, step{'s' * (finding['last_step'] > finding['step'])} " in console
    page = page_of(output)
    assert page is None or finding["settings"].split()[0] in page


@pytest.mark.slow
def test_a_reference_model_old_logprobs_and_credit_by_turn(start: Start) -> None:
    """With real actors: the reference holds the warmed-up policy, so that the penalty begins at 0.

    The engine sleeps whenever the trainer or the reference model works, over a window of two steps too.
    """
    run = start(
        "trainers.grpo", "--env", "math", "--steps", "3", "--tasks", "128", "--dataset.held_out", "8",
        "--warmup.steps", "8", "--warmup.demonstrations", "64", "--grpo.n_samples", "4", "--training.batch_size", "4",
        "--grpo.beta", "0.05", "--grpo.kl_in", "reward", "--grpo.kl", "k2", "--services.ref_model.procs", "1",
        "--grpo.credit", "turn", "--training.old_logprobs", "trainer", "--training.sync_interval", "2",
        "--training.entropy_coef", "0.01",  # so that the policy moves, whatever its rewards
        "--services.generator.sleep", "yes",
    )  # fmt: skip
    console = run.ends_with(0)
    if OBSERVED:
        _check_sleep(run.output)
    for phrase in (
        "the engine sleeps while the trainer steps",
        "frozen, is the policy after the warm-up",
        "on-policy check: mean",
        "as expected for float32",
    ):
        assert phrase in console, console
    assert (run.output / "reference.safetensors").is_file()
    steps = records(run.output)
    assert abs(steps[0]["kl_penalty"]) < 1e-8 < steps[-1]["kl_penalty"]
    for step in steps:
        assert step["seconds/reference"] > 0 and step["mismatch_alarm"] == 0.0
    first, second, third = steps  # of a window of two steps, and of one that is left
    assert first["seconds/old_logprobs"] > 0 and not {"seconds/old_logprobs"} & (second.keys() | third.keys())
    assert first["ratio_min"] == first["ratio_max"] == third["ratio_min"] == third["ratio_max"] == 1
    assert second["ratio_min"] < 0.9999 and second["ratio_max"] > 1.0001  # by what the first step changed
    assert [step["staleness_max"] for step in steps] == [0, 1, 0]
    assert json.loads((run.output / "run.json").read_text())["old_logprobs"] == "trainer"


@pytest.mark.slow
@pytest.mark.parametrize("top_k", ["0", "8"])
def test_a_teacher_that_is_the_policy_itself_has_nothing_to_teach_at_first(
    start: Start, tiny_model: Path, top_k: str
) -> None:
    """With real actors, on two processes; the engine's rounding is the only divergence of the first step."""
    run = start(
        "trainers.reinforce", "--env", "math", "--model", str(tiny_model), "--steps", "2", "--tasks", "32",
        "--dataset.held_out", "8", "--distill.teacher", str(tiny_model), "--distill.only", "--distill.top_k", top_k,
        "--teacher.procs", "2", "--reinforce.n_samples", "1", "--env.min_valid", "1", "--training.batch_size", "4",
        *SHORT,
    )  # fmt: skip
    run.ends_with(0)
    steps = records(run.output)
    assert abs(steps[0]["teacher_kl"]) < 1e-4 and all(step["seconds/teacher"] > 0 for step in steps)
    assert all(step["tokens_left_out"] == 0 for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("top_k", ["0", "8"])
def test_two_teachers_of_two_environments(start: Start, tiny_model: Path, top_k: str) -> None:
    """A model for one of them, and for the other the policy with a hint, which is no longer what sampled."""
    run = start(
        "trainers.grpo", "--env", "math", "--env", "code_exec", "--model", str(tiny_model), "--steps", "2",
        "--tasks", "32", "--dataset.held_out", "8", "--distill.teacher", str(tiny_model), "--distill.top_k", top_k,
        "--mixture.math.distill.teacher", "self", "--training.batch_size", "4", "--env.max_tokens", "512", *SHORT,
    )  # fmt: skip
    run.ends_with(0)
    steps = records(run.output)
    assert all(step["taught"] == 1 and step["teacher_kl"] != 0 and not step["skipped"] for step in steps)


@pytest.mark.slow
def test_an_algorithm_in_a_file_of_the_users_own_trains_and_goes_on(
    start: Start, tmp_path: Path, tiny_model: Path
) -> None:
    """The trainer's process imports the loss from the file; a file that cannot be imported there ends the run."""
    page = (REPOSITORY / "docs" / "algorithms.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(# my_algorithm\.py\n.*?)```", page, re.DOTALL)
    assert source is not None
    (tmp_path / "my_algorithm.py").write_text(source[1])
    target = f"{tmp_path / 'my_algorithm.py'}:SQUARED"
    options = [
        "--env", "math", "--model", str(tiny_model), "--tasks", "32", "--dataset.held_out", "8", *SHORT,
        "--training.batch_size", "2", "--squared.n_samples", "2", "--training.entropy_coef", "0.01",
    ]  # fmt: skip
    run = start(f"trainers {target}", *options, "--steps", "1")
    console = run.ends_with(0)
    summary = summary_of(run.output)
    assert (summary["algorithm"], summary["command"]) == ("squared", f"trainers {target}")
    again = start(f"trainers {target}", "--output", str(run.output), "--resume", "--steps", "2")
    console = again.ends_with(0)
    assert "squared goes on after step 1" in console and "squared 2/2" in console


@pytest.mark.slow
@pytest.mark.parametrize("publish", ["merged", "adapter"])
def test_adapters_in_a_whole_run(start: Start, publish: str, tiny_model: Path) -> None:
    """The engine has them, merged or in its slot; the trainer itself is the reference, and its penalty begins at 0."""
    run = start(
        "trainers.grpo", "--env", "math", "--steps", "2", "--tasks", "128", "--dataset.held_out", "8",
        "--warmup.steps", "4", "--warmup.demonstrations", "64", "--grpo.n_samples", "4", "--training.batch_size", "4",
        "--grpo.beta", "0.05", "--grpo.kl_in", "reward", "--grpo.kl", "k2", "--lora.rank", "4",
        "--lora.publish", publish, "--model", str(tiny_model), *SHORT,
        "--training.learning_rate", "1e-2", "--training.entropy_coef", "0.01",  # so that the policy moves
    )  # fmt: skip
    console = run.ends_with(0)
    assert "the reference model is the trainer's own, with the adapter that it had after the warm-up" in console
    steps = records(run.output)
    assert abs(steps[0]["kl_penalty"]) < 1e-8 < steps[-1]["kl_penalty"]
    assert all(step["mean_abs_logprob_difference"] <= 1e-5 for step in steps)
    assert steps[-1]["delivery/difference"] <= 1e-5 and steps[-1]["delivery/missing"] <= 0.01
    _check_export(run.output / "model")
    for adapter in ("adapter", "reference_adapter"):
        config = json.loads((run.output / adapter / "adapter_config.json").read_text())
        assert config["r"] == 4 and config["base_model_name_or_path"] == str(tiny_model)
        assert (run.output / adapter / "adapter_model.safetensors").stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--lora.publish", "merged"], ["--lora.publish", "adapter"]])
def test_a_run_whose_engine_loads_no_update_stops(start: Start, options: list[str], tiny_model: Path) -> None:
    """It takes every version over by its number alone. That of the warm-up is the first, that of step 1 the second."""
    adapters = ["--lora.rank", "4", *options, "--model", str(tiny_model)] if options else []
    run = start(
        "tests.system.deaf_grpo", "--env", "math", "--steps", "6", "--tasks", "128", "--dataset.held_out", "8",
        "--warmup.steps", "4", "--warmup.demonstrations", "64", "--grpo.n_samples", "4", "--training.batch_size", "4",
        "--training.learning_rate", "1e-2", "--training.entropy_coef", "0.01", *SHORT, *adapters,
    )  # fmt: skip
    console = run.ends_with(1)
    (sentence,) = [line for line in console.splitlines() if line.startswith("error: ")]
    assert "the engine generator does not generate from the trainer's weights, after 2 updates in a row" in sentence
    assert "the engine's by 0," in sentence and "it answers as the model of the start" in sentence
    assert steps_taken(run.output) == [1]


@pytest.mark.slow
def test_a_model_with_experts_replays_the_routes_of_its_engine(start: Start) -> None:
    run = start(
        "trainers.grpo", "--env", "math", "--model.size", "tiny-moe", "--steps", "2", "--tasks", "128",
        "--dataset.held_out", "8", "--warmup.steps", "4", "--warmup.demonstrations", "64", "--grpo.n_samples", "4",
        "--training.batch_size", "4", "--training.entropy_coef", "0.01",  # so that each step trains
        "--training.sync_interval", "2", "--training.old_logprobs", "trainer",
    )  # fmt: skip
    run.ends_with(0)
    first, second = records(run.output)
    assert first["skipped"] == second["skipped"] == 0 and first["mean_abs_logprob_difference"] <= 1e-4
    assert first["replay/holes"] == second["replay/holes"] == 0
    assert first["replay/experts_differ"] < 0.01 < second["replay/experts_differ"], "the first step changed the router"
    assert {"replay/difference_without", "replay/kl_without"} <= first.keys() - second.keys()
    assert not any("replay/holes" in line for line in records(run.output, "warmup")), "there is no engine"
    _check_export(run.output / "model")


def _check_sleep(output: Path) -> None:
    """The engine sleeps before each span of work of the trainer and of the reference model, and wakes by a pull."""
    trace = json.loads((output / "trace.json").read_text())
    names = ("sleep", "pull", "publish", "optimizer step", "logprobs")
    spans = sorted((event for event in trace if event["name"] in names), key=lambda event: event["ts"])
    ends = {name: [event["ts"] + event["dur"] for event in spans if event["name"] == name] for name in names}
    work = [event for event in spans if event["name"] not in ("sleep", "pull")]
    assert len(work) > 8 + 3
    for event in work:
        last = {name: max((end for end in ends[name] if end <= event["ts"]), default=0) for name in ("sleep", "pull")}
        assert last["sleep"] > last["pull"], event
    assert len(ends["sleep"]) == len(ends["pull"]) + 1, "it sleeps on while the model is exported"


@pytest.mark.slow
def test_a_model_that_thinks_within_a_budget(start: Start) -> None:
    """Demonstrations begin with an empty thought, so every thought is over its budget and is ended."""
    thinks = ("--env.thinking", "on", "--env.max_thinking_tokens", "1", "--env.max_turn_tokens", "40")
    warmup = ("--warmup.steps", "60", "--warmup.learning_rate_warmup", "10", "--warmup.demonstrations", "192")
    run = start("trainers.grpo", "--env", "math", *thinks, *warmup, "--steps", "2", "--tasks", "256",
                "--dataset.held_out", "16",
                "--training.entropy_coef", "0.01")  # so that each step trains, whatever its rewards  # fmt: skip
    run.ends_with(0)
    turns = [turn for episode in read_jsonl(run.output / "episodes/train.jsonl") for turn in episode.turns]
    ended = [turn for turn in turns if [version for version, _ in turn.versions].count(-1) == 1]
    assert len(ended) > 0.9 * len(turns) and all(turn.num_written < len(turn.token_ids) for turn in ended)
    assert all(len(turn.context_digest.split()) == 2 for turn in ended)  # which reading has checked
    steps = records(run.output)
    assert all(line["mean_abs_logprob_difference"] < 1e-5 for line in steps), "the trainer reads what the engine read"
    assert all(line["rollout/rows_per_episode"] == 1 and line["rollout/repeated_tokens"] == 0 for line in steps)


@pytest.mark.slow
def test_a_trainer_of_two_ranks_in_a_whole_run(start: Start) -> None:
    """Two processes of FSDP train what one does, as the same seeds show in the losses of the warm-up."""
    options = (
        "--env", "math", "--steps", "2", "--tasks", "128", "--dataset.held_out", "8", "--warmup.steps", "4",
        "--warmup.demonstrations", "64",
        "--training.entropy_coef", "0.01",  # so that all episodes are computed, whatever their rewards
    )  # fmt: skip
    losses = []
    for procs in ("1", "2"):
        run = start("trainers.grpo", *options, "--trainer.procs", procs)
        run.ends_with(0)
        assert (run.output / "logs" / "trainer-1.log").exists() == (procs == "2")
        assert steps_taken(run.output) == [1, 2]
        assert all(line["mean_abs_logprob_difference"] < 1e-5 for line in records(run.output))
        losses.append([line["loss"] for line in records(run.output, "warmup")])
        _check_export(run.output / "model")
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


STEP = 4 * 4
"""Episodes of a step of the quick run."""
_PHASES = {"imports and settings", "tasks", "model", "launcher", "processes"}
_PHASES |= {"trainer: import", "trainer: load", "first optimizer step"}
_RL_PHASES = {"environments", "engine: import", "engine: load", "engine: first request", "waiting for the engine"}
_RL_PHASES |= {"demonstrations", "warm-up", "weights: publish", "weights: commit", "weights: pull", "evaluation"}
_RL_PHASES |= {"evaluation without tools", "first rollouts"}


def _check_start(output: Path, console: str, names: set[str]) -> None:
    """A run says what each phase of its start took, in the order that they need."""
    summary = summary_of(output)
    phases = dict(summary["startup"])
    first_step = phases.pop("first_step")
    assert set(phases) == names
    assert f"first optimizer step {first_step:.1f} s after the command" in console
    assert 0 < first_step < summary["total_seconds"] + phases["imports and settings"][1]
    ends = {}
    for name, (began, seconds) in phases.items():
        assert began >= 0 and seconds >= 0 and began + seconds <= first_step + 0.01, name
        assert f" s  {name}\n" in console
        ends[name] = began + seconds
    for earlier, later in (
        ("imports and settings", "model"), ("model", "launcher"), ("launcher", "processes"),
        ("trainer: import", "trainer: load"), ("trainer: load", "first optimizer step"),
        ("environments", "demonstrations"), ("demonstrations", "warm-up"), ("trainer: load", "warm-up"),
        ("engine: import", "engine: load"), ("engine: load", "engine: first request"),
        ("engine: first request", "weights: pull"), ("weights: pull", "evaluation"), ("evaluation", "first rollouts"),
        ("first rollouts", "first optimizer step"),
    ):  # fmt: skip
        if {earlier, later} <= names:
            assert ends[earlier] <= phases[later][0] + 0.05, (earlier, later)  # of the clocks of two processes
    if "demonstrations" in names:
        assert phases["demonstrations"][0] < ends["trainer: load"], "the expert does not wait for the trainer"
    assert phases["imports and settings"][0] == 0.0 and ends["first optimizer step"] == pytest.approx(
        first_step, abs=0.1
    )
    assert json.loads((output / "run.json").read_text())["startup"] == summary["startup"]
    if OBSERVED:
        trace = (output / "trace.json").read_text()
        assert all(f'"name": "{name}"' in trace for name in names)


def _check_episodes(output: Path) -> None:
    train = list(read_jsonl(output / "episodes" / "train.jsonl"))  # construction checks every invariant again
    assert len(train) == 2 * STEP
    assert all(episode.outcome.is_valid and episode.is_trainable for episode in train)
    first, second = train[:STEP], train[STEP:]
    published = {version for episode in first for version in episode.versions}
    assert len(published) == 1, "synchronous: one step's episodes are sampled by one version"
    assert {version for episode in second for version in episode.versions} == {published.pop() + 1}
    demonstrations = list(read_jsonl(output / "episodes" / "demonstrations.jsonl"))
    assert all(e.reward == 1.0 and not e.is_trainable and e.rows for e in demonstrations)


def _check_kinds(output: Path, records: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Success by kind of task in the episodes, the metrics of all phases, TensorBoard, the summary and the report."""
    train = list(read_jsonl(output / "episodes" / "train.jsonl"))
    first, probe = train[:STEP], next(r for r in records if r["phase"] == "warmup" and "success" in r)
    by_phase = {(record["phase"], record["step"]): record for record in records}
    of_step, before = by_phase["train", 1], by_phase["evaluation", 0]
    for kind in {episode.task.kind for episode in first}:
        rewards = [episode.reward for episode in first if episode.task.kind == kind]
        assert of_step[f"episodes/{kind}"] == len(rewards)
        assert of_step[f"success/{kind}"] == sum(reward == 1.0 for reward in rewards) / len(rewards)
        assert of_step[f"reward/{kind}"] == pytest.approx(sum(filter(None, rewards)) / len(rewards))
        if OBSERVED:
            assert _scalar(output, f"train/success/{kind}", step=1) == pytest.approx(of_step[f"success/{kind}"])
    for record, name in ((of_step, "episodes"), (before, "episodes")):
        assert sum(value for key, value in record.items() if key.startswith("episodes/")) == record[name]
    assert any(name.startswith("success/") for name in probe)
    for kind, change in summary["by_kind"].items():
        assert change["success_before"] == before[f"success/{kind}"]
        assert change["success_before_ci95"] == [before[f"success_low/{kind}"], before[f"success_high/{kind}"]]
    assert sum(change["tasks"] for change in summary["by_kind"].values()) == summary["evaluation_episodes"] == 8
    if page := page_of(output):
        kinds = _tables(page)["Success by kind of task"]
        assert {row[0] for row in kinds} >= summary["by_kind"].keys()


def _tables(page: str) -> dict[str, list[list[str]]]:
    """The rows of the tables of report.html by their titles."""
    tables = data_of(page)["views"]["0"]["report"]["tables"]
    return {table["title"]: table["rows"] for table in tables}


def _scalar(output: Path, tag: str, *, step: int) -> float:
    """A value that TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(output / "tensorboard")).Reload()
    return next(event.value for event in events.Scalars(tag) if event.step == step)


def _check_page(page: str, summary: dict[str, Any], trained: list[Episode]) -> None:
    """report.html has every part of which the run has something, and its figures."""
    data = data_of(page)
    view = data["views"]["0"]
    assert data["runs"][0]["complete"] and not view["report"]["why_incomplete"]
    tables = _tables(page)
    called = {use.name or "unknown" for episode in trained for turn in episode.turns for use in turn.tool_uses}
    assert tables.keys() >= {"Startup", "Outcomes"} and {row[0] for row in tables.get("Slowest tools", [])} == called
    assert {"train", "evaluation", "warmup"} | ({"system"} if OBSERVED else set()) <= view["curves"].keys()
    assert {"reward", "success", "entropy", "seconds/publish"} <= view["curves"]["train"]["values"].keys()
    measured = {evaluation["title"]: evaluation["success"] for evaluation in view["overview"]["evaluations"]}
    assert measured["before training"] == pytest.approx(summary["success_before"])
    assert measured["after training"] == pytest.approx(summary["success_after"])
    assert "before, tools switched off" in measured
    samples = view["report"]["samples"]
    assert samples and all(view["details"].keys() >= {sample["before"], sample["after"]} for sample in samples)
    assert "learning_rate: 0.0006" in view["overview"]["documents"]["config.yaml"]


def _check_export(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)


# The quick test of a signal is that of supervised training, which starts no engine: test_resume.py.
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_training_ends_everything(start: Start, number: signal.Signals, code: int) -> None:
    a_signal_ends_everything(start, number, code)


def a_signal_ends_everything(
    start: Start, number: signal.Signals, code: int, *more: str, is_ready: Callable[[Path], object] = Path.is_dir
) -> Path:
    """Returns the run's folder, with which `is_ready` is asked before the signal."""
    options = (*more, *MEASURED, "--training.signal_error", "0")
    run = start("trainers.grpo", "--env", "math", "--steps", "100000", *options, *UNTRAINED)
    run.read_until("grpo ")
    run.read_until("grpo ")
    wait_until(lambda: is_ready(run.output), "the run is ready for the signal")
    os.killpg(run.process.pid, number)  # as a terminal does
    console = run.ends_with(code)
    (step,) = steps_of(run.output)
    assert f"a checkpoint is kept: go on from step {step} with python -m trainers.grpo" in console
    page = page_of(run.output)
    assert page is None or '"why_incomplete":"it was stopped"' in page
    return run.output


@pytest.mark.slow
def test_ctrl_c_while_the_engine_starts(start: Start) -> None:
    run = start("trainers.grpo", "--env", "code_exec", *UNTRAINED)
    run.read_until("the engine is starting")
    run.process.send_signal(signal.SIGINT)
    console = run.ends_with(130)
    assert "Traceback" not in console and "nothing is kept" in console and not run.output.exists()


@pytest.mark.slow
def test_marks_with_new_rows_are_learned(start: Start, tmp_path: Path, tiny_model: Path) -> None:
    """A model in which both marks of a call have one row learns to call its tool, and is exported with the new rows."""
    model = make_model_folder(tmp_path / "model", tiny_model, tie_word_embeddings=True)
    embedding = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    first, second = map(FastTokenizer(model).token_id, ["<tool_call>", "</tool_call>"])
    embedding[second] = embedding[first]
    change_weights(model, model__embed_tokens__weight=embedding)
    run = start(
        "trainers.sft", "--env", "math", "--model", str(model), "--model.new_rows", "on", "--steps", "140",
        "--tasks", "1024", "--warmup.learning_rate", "3e-3", "--warmup.learning_rate_warmup", "10",
        "--warmup.batch_size", "16", "--dataset.held_out", "32", *SHORT,
    )  # fmt: skip
    console = run.ends_with(0)
    assert "new rows: <tool_call>, </tool_call> get rows of their own" in console
    episodes = list(read_jsonl(run.output / "episodes" / "after.jsonl"))
    assert sum(any(turn.tool_uses for turn in episode.turns) for episode in episodes) > len(episodes) / 2
    begun, trained = (
        load_file(run.output / name / "model.safetensors")["model.embed_tokens.weight"]
        for name in ("initial_model", "model")
    )
    assert not begun[first].equal(begun[second]) and trained.shape == begun.shape
    _check_export(run.output / "model")


def write_chats(path: Path) -> Path:
    """A hundred conversations, and a line that cannot be read."""
    chats = [
        {"messages": [{"role": "user", "content": f"What follows {n}?"}, {"role": "assistant", "content": f"{n + 1}."}]}
        for n in range(100)
    ]
    path.write_text("\n".join([*map(json.dumps, chats), "{broken"]), encoding="utf-8")
    return path


@pytest.mark.slow
def test_sft_on_a_file_of_chats(start: Start, tmp_path: Path) -> None:
    """No environment, no engine: the trainer alone, on what a user wrote down."""
    run = start(
        "trainers.sft", "--sft.data", str(write_chats(tmp_path / "chats.jsonl")), "--sft.tokens_per_step", "1024",
        "--sft.epochs", "2", "--training.max_tokens_per_micro_batch", "512", "--checkpoint.interval", "2", "--verbose",
    )  # fmt: skip
    console = run.ends_with(0)
    assert "chats in the column messages" in console
    assert "1 left out (line 101" in console
    summary = summary_of(run.output)
    assert (summary["env"], summary["left_out"], summary["held_out_conversations"]) == ("", 1, 2)
    assert summary["held_out_loss_after"] < summary["held_out_loss_before"] - 0.5
    steps = records(run.output)
    assert len(steps) == summary["steps"] >= 4
    rates = [step["learning_rate"] for step in steps]
    assert rates == pytest.approx([3e-3 * (1 - done / len(steps)) for done in range(len(steps))])
    page = page_of(run.output)
    assert page is None or ('"algorithm":"sft"' in page and "Held-out loss" in page)
    assert not (run.output / "logs" / "generator.log").exists()
    _check_export(run.output / "model")
    _check_start(run.output, console, _PHASES | {"data", "held-out loss", "first batch"})

    # From the checkpoint before the last one, the same steps once more.
    newest = max(steps_of(run.output).values())
    shutil.rmtree(newest)
    (run.output / "summary.json").unlink()
    again = start("trainers.sft", "--output", str(run.output), "--resume")
    console = again.ends_with(0)
    assert "sft goes on after step" in console
    _check_start(run.output, console, _PHASES | {"data", "checkpoint", "first batch"})  # of the newest start
    repeated = records(run.output)
    assert [(step["step"], step["loss"]) for step in repeated] == [(step["step"], step["loss"]) for step in steps]

    # And from the last one, when there are more steps to take.
    more = start("trainers.sft", "--output", str(run.output), "--resume", "--steps", str(len(steps) + 2))
    console = more.ends_with(0)
    summary = summary_of(run.output)
    assert summary["steps"] == len(steps) + 2 and summary["held_out_loss_after"] < summary["held_out_loss_before"]
