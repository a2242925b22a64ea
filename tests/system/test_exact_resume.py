"""`--training.deterministic`: a run that is killed at a random point and resumed is bitwise one that never was."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.episode import Episode, read_jsonl
from forge_env.records.run_files import steps_of
from tests.helpers.pages import OBSERVED
from tests.helpers.runs import Start, Started, json_lines, summary_of
from trainers.checkpoints import read_manifest

STEPS = 6
OPTIONS = (
    "--env", "code_exec", "--training.deterministic", "--checkpoint.interval", "1", "--steps", str(STEPS),
    "--tasks", "256", "--dataset.held_out", "16", "--evaluation.interval", "2",
    "--warmup.steps", "60", "--warmup.demonstrations", "128", "--warmup.probe_tasks", "16",
)  # fmt: skip
CLOCK = re.compile(r"time|seconds.*|s/step|tokens/s|tool/.*_s|engine/.*|delivery/.*")
"""Metrics of time, of an engine's work, which depends on its start, and of its answer to the fixed prompt, which a busy
engine gives too late."""


def metrics(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What a run measured in each step, but for the time."""
    return {
        (record["phase"], record["step"]): {name: v for name, v in record.items() if not CLOCK.fullmatch(name)}
        for record in json_lines(run / "metrics.jsonl")
        if record["phase"] != "system"
    }


def tokens(run: Path, phase: str) -> list[tuple[Any, ...]]:
    """Every token of every episode, with its logprob to the last bit."""

    def of(episode: Episode) -> tuple[Any, ...]:
        turns = [(*(getattr(turn, name).tolist() for name in turn.ARRAYS), turn.versions) for turn in episode.turns]
        return episode.id, episode.reward, turns

    return [of(episode) for episode in read_jsonl(run / "episodes" / f"{phase}.jsonl")]


def has_begun(run: Started) -> bool:
    """Whether it has taken a step, of the warm-up at least; everything is waited for with a deadline of its own."""
    written = run.output / "metrics.jsonl"
    return written.exists() and written.stat().st_size > 0


def kill(run: Started) -> None:
    """End all of its processes at once, but for Python's own, which tidy up after those and end by themselves."""
    for pid, command in run.processes().items():
        if "resource_tracker" not in command:
            os.kill(pid, signal.SIGKILL)
    run.end()
    run.forget_logs()


WINDOWS = ("--training.sync_interval", "2", "--training.old_logprobs", "trainer")
BOTH = (
    *("--env", "math:0.5", "--training.mixture_by", "tokens", "--mixture.math.n_samples", "4"),
    *("--training.entropy_coef", "0.01", "--dataset.sampler", "window"),  # each step has a gradient
)


@pytest.mark.slow
@pytest.mark.skipif(not OBSERVED, reason="the timeline says when to kill it")
@pytest.mark.timeout(900)  # three starts of the engine
@pytest.mark.parametrize(
    ("page", "pace", "by_itself"),
    [("trainers.grpo", (), False), ("trainers.gspo", WINDOWS, False), ("trainers.grpo", BOTH, True)],
    ids=["grpo", "windows", "two environments"],
)
def test_a_killed_run_is_bitwise_one_that_never_was(
    start: Start, page: str, pace: tuple[str, ...], by_itself: bool
) -> None:
    """All processes die and a command resumes the run, or the trainer dies and the run starts again by itself."""
    killed = start(page, *OPTIONS, *pace)
    killed.wait(lambda: has_begun(killed))
    killed.wait(lambda: steps_of(killed.output))
    trace = killed.output / "trace.json"
    spans = len(trace.read_bytes().splitlines()) + random.Random().randrange(6)
    killed.wait(lambda: len(trace.read_bytes().splitlines()) >= spans)
    in_windows, again = pace == WINDOWS, killed
    if by_itself:
        os.kill(json.loads((killed.output / "logs" / "pids.json").read_text())["trainer"][0], signal.SIGKILL)
        console = killed.end()
        done = json.loads((killed.output / "run.json").read_text())["restarts"][0]["step"]
        assert f"started again from step {done}, restart 1 of 1" in console
    else:
        kill(killed)
        done = max(steps_of(killed.output))
        assert not in_windows or done % 2 == 0, "a checkpoint is written between two windows"
        again = start(page, "--output", str(killed.output), "--resume")
        console = again.end()
    assert 1 <= done < STEPS
    assert again.process.returncode == 0, console
    assert f"goes on after step {done}" in console
    again.assert_nothing_left()

    whole = start(page, *OPTIONS, *pace)
    whole.wait(lambda: has_begun(whole))
    whole.wait(lambda: steps_of(whole.output))
    whole.ends_with(0)

    expected, result = metrics(whole.output), metrics(killed.output)
    assert [step for phase, step in expected if phase == "train"] == list(range(1, STEPS + 1))
    trained = [expected["train", step] for step in range(1, STEPS + 1)]
    assert all(step["grad_norm"] > 0 for step in trained), "there is something to compare"
    assert [step["staleness_max"] for step in trained] == [step % 2 if in_windows else 0 for step in range(STEPS)]
    assert len({step["grad_norm"] for step in trained}) == STEPS
    assert any(len(turns) > 1 for _, _, turns in tokens(whole.output, "train")), "the tools took part"
    for at, values in expected.items():  # one by one, so that the first difference is what is shown
        assert result[at] == values, at
    assert [step for phase, step in expected if phase == "evaluation"] == [0, 2, 4, STEPS]
    for phase in ("before", "train", "evaluation_000002", "evaluation_000004", "after"):
        assert tokens(killed.output, phase) == tokens(whole.output, phase), phase
    curves = [summary_of(run.output)["reward_curve"] for run in (killed, whole)]
    assert curves[0] == curves[1] and len(curves[0]) == STEPS


def place(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint knows of the run's groups."""
    result: dict[str, Any] = read_manifest(checkpoint)["extra"]["place"]
    return result


@pytest.mark.slow
@pytest.mark.timeout(600)  # two starts of the engine
def test_every_prompt_is_trained_once_or_dropped_for_a_reason(start: Start) -> None:
    """With rollouts two steps ahead, groups without a signal dropped, and a kill: nothing is lost or comes twice."""
    staleness, size = 2, 4
    killed = start(
        "trainers.dapo", "--env", "code_exec", "--checkpoint.interval", "1", "--checkpoint.keep_last", "1000",
        "--steps", "100000", "--training.staleness", str(staleness), "--training.batch_size", str(size),
        "--dapo.n_samples", "4", "--training.signal_error", "0", "--tasks", "256", "--dataset.held_out", "8",
        "--dataset.sampler", "window",
        "--warmup.steps", "60", "--warmup.demonstrations", "128", "--warmup.probe_tasks", "16",
    )  # fmt: skip
    killed.wait(lambda: has_begun(killed))
    killed.wait(lambda: any(place(path)["ready"] for path in steps_of(killed.output).values()))
    kill(killed)
    # From one that holds a group which is ready, so that the resumed run has to train on it.
    step, before = next(
        (step, place(path)) for step, path in reversed(steps_of(killed.output).items()) if place(path)["ready"]
    )
    until = step + staleness + 1
    options = ("--resume", "--checkpoint.step", str(step), "--steps", str(until))
    again = start("trainers.dapo", "--output", str(killed.output), *options)
    again.ends_with(0)
    ledger = place(steps_of(killed.output)[until])["ledger"]

    episodes = list(read_jsonl(killed.output / "episodes" / "train.jsonl"))
    assert len({episode.id for episode in episodes}) == len(episodes), "an episode was trained on twice"
    groups = list(dict.fromkeys(number(episode) for episode in episodes))
    assert len(groups) == size * until == ledger["trained"]
    assert ledger["dropped"]["no signal"] > 0 and set(ledger["dropped"]) <= {"no signal", "too few valid episodes"}
    assert not set(ledger["open"]) & set(groups)
    assert set(ledger["open"]) | set(groups) <= set(range(ledger["next"]))
    assert len(groups) + len(ledger["open"]) + sum(ledger["dropped"].values()) == ledger["next"]

    from_step = {group: i // size for i, group in enumerate(groups)}  # the optimizer steps before its own
    for ready in before["ready"]:
        assert step <= from_step[ready["number"]] <= ready["deadline"]
    first = min(version for episode in episodes for version in episode.versions)
    lags = [from_step[number(episode)] + first - min(episode.versions) for episode in episodes if episode.versions]
    assert min(lags) >= 0 and max(lags) <= staleness


def number(episode: Episode) -> int:
    """Of an episode's prompt in the ledger."""
    return int(episode.group_id.removeprefix("train/"))
