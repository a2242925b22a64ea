"""What a run finds that keeps it from learning: each kind in made-up figures, and nothing in runs that learned."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from contrib.observe.diagnosis import Diagnosis, Finding, RunDiagnosis
from contrib.observe.diagnosis_rules import RunFacts
from forge_env.records.sinks import Record
from trainers.config import SHORT_OPTIONS
from trainers.grpo import GRPO, Config
from trainers.run.run import Run
from trainers.run.run_record import RunRecord
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

FACTS = RunFacts(
    algorithm="grpo",
    env="math",
    learning_rate=6e-4,
    n_samples=8,
    max_turn_tokens=32,
    max_tokens=512,
    mismatch_bounds="0.0001 and 0.0001, the bounds for float32",
)


def rewards(success: float, reward: float | None = None, **more: float) -> dict[str, float]:
    """Of a step; the mean reward is the share of successes, unless another is given."""
    return {"success": success, "training_reward": success if reward is None else reward, **more}


def signals(**groups: float) -> dict[str, float]:
    """Groups of a step, by what their episodes have in common; "__" is "/"."""
    return {f"signal/{name.replace('__', '/')}": count for name, count in groups.items()}


HEALTHY: Mapping[str, float] = {
    **rewards(0.5, training_reward_std=0.5, episodes=96, entropy=0.3, ess=1.0, clipped_low=0.0, clipped_high=0.0),
    **signals(groups=12, failed=1, solved=1, same=0),
    "mismatch_alarm": 0.0,
}
FAILED = {**rewards(0.0, training_reward_std=0.0), **signals(failed=12, solved=0)}
CHEATED = {"cheats/known": 0.1, "cheats/rewarded": 0.12, "cheats/rewarded/os._exit": 0.12}


def held_out(success: float, half: float = 0.05) -> dict[str, float]:
    """An evaluation, with the interval of its success."""
    return {"success": success, "success_low": success - half, "success_high": success + half}


def found(*steps: Mapping[str, float], facts: RunFacts = FACTS, before: float = 0.0) -> list[Finding]:
    """What is found in a run of these steps; with `before`, after an evaluation of that success."""
    diagnosis = Diagnosis(facts)
    if before:
        diagnosis.log("evaluation", 0, held_out(before))
    for number, values in enumerate(steps, 1):
        diagnosis.log("train", number, {**HEALTHY, **values})
    return diagnosis.findings


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def test_tasks_that_are_too_hard_are_found_with_their_groups_once_there_are_enough() -> None:
    assert found(FAILED, FAILED) == []
    (finding,) = found(*[FAILED] * 5)
    assert (finding.kind, finding.step, finding.last_step) == ("too_hard", 3, 5)
    assert finding.measured == (
        "60 of the last 60 groups had one reward for all their episodes and were trained on without effect: "
        "60 without a success, 0 with successes only"
    )
    assert "too hard" in finding.cause and "--grpo.n_samples, now 8" in finding.settings


@pytest.mark.parametrize(
    ("loss", "values", "words"),
    [
        ("mine.py:loss", {"loss": float("nan")}, "the loss was not finite. Likely cause: --loss mine.py:loss divides"),
        ("", {"loss": float("inf")}, "the loss was not finite. Likely cause: the steps are too large"),
        ("mine.py:loss", {"loss": 0.5}, "the gradient was not finite. Likely cause: --loss mine.py:loss"),
        ("", {"loss": 0.0, "tokens": 0.0}, ""),  # the prompts leave no token to sample
    ],
)
def test_steps_that_are_not_finite_name_the_loss(loss: str, values: Mapping[str, float], words: str) -> None:
    steps = [{**FAILED, "tokens": 9.0, "skipped": 1.0, **values}] * 5
    findings = found(*steps, facts=replace(FACTS, loss=loss))
    if words:
        assert kinds(findings) == ["not_finite"] and words in str(findings[0])
    else:
        assert "not_finite" not in kinds(findings)


def test_a_fifth_of_groups_with_a_signal_is_enough_to_learn_from() -> None:
    few = {**FAILED, "signal/failed": 9, "training_reward_std": 0.1}
    assert found(*[few] * 5) == []
    assert kinds(found(*[{**few, "signal/failed": 10}] * 5)) == ["too_hard"]


def test_tasks_that_are_too_easy_are_found_and_those_that_were_learned_are_not() -> None:
    solved = {**rewards(1.0, training_reward_std=0.0), **signals(failed=0, solved=12)}
    (finding,) = found(*[solved] * 3)
    assert finding.kind == "too_easy" and "harder tasks" in finding.settings
    rising = [rewards(0.3 + step / 100) for step in range(60)]
    assert found(*rising, *[solved] * 20) == []


def test_kinds_without_a_signal_are_named() -> None:
    kinds_of_tasks = signals(groups__add=10, solved__add=9, groups__divide=10, failed__divide=10)
    mixed = {"success": 0.5, **signals(groups=20, failed=10, solved=9), **kinds_of_tasks}
    (finding,) = found(*[mixed] * 2)
    assert finding.kind == "too_easy_and_too_hard"
    assert finding.measured.endswith("(by kind: add solved 18 of 20, divide failed 20 of 20)")


def test_groups_that_are_dropped_are_found_before_any_step() -> None:
    told: list[Finding] = []
    diagnosis = Diagnosis(RunFacts(algorithm="dapo", resamples=True), told.append)
    for count in range(1, 65):
        diagnosis.waiting({"signal/groups": count, "signal/failed": count})
    assert [(finding.kind, finding.step) for finding in told] == [("too_hard", 1)]
    assert "32 of the last 32 groups" in told[0].measured and "dropped and sampled anew" in told[0].measured


def test_without_a_baseline_a_group_with_one_reward_teaches_something() -> None:
    facts = RunFacts(algorithm="reinforce", needs_siblings=False)
    assert kinds(found(*[{**FAILED, "training_reward_std": 0.1}] * 5, facts=facts)) == []


def test_a_reward_that_never_changes_is_found_whoever_gives_it() -> None:
    same = {**rewards(0.5, 0.3, training_reward_std=0.0), **signals(failed=0, solved=0, same=12)}
    (finding,) = found(*[same] * 3, facts=RunFacts(env="math", reward="mine.py:reward"))
    assert finding.kind == "rewards_constant" and "--reward mine.py:reward" in finding.cause
    assert finding.measured.endswith("had the reward 0.3, and the environment's success was 0.50")
    assert kinds(found(*[same] * 3)) == ["rewards_constant"]
    assert kinds(found(*[{**FAILED, "training_reward": -1.0}] * 3)) == ["rewards_constant"]


def test_rewarded_episodes_that_end_like_a_cheat_are_found_once_they_are_often() -> None:
    assert found(*[{**CHEATED, "cheats/rewarded/os._exit": 0.04}] * 9) == []
    (finding,) = found(*[{}] * 5, *[CHEATED] * 5)
    assert (finding.kind, finding.step) == ("cheats", 7)
    assert finding.measured == (
        "12% of the rewarded episodes of the last 5 steps end like the cheat 'os._exit'; in the first 5 steps it was 0%"
    )


def test_episodes_that_a_limit_on_tokens_cuts_off_are_found_with_the_limit() -> None:
    cut = {"ended_by/max_turn_tokens": 0.4, "ended_by/max_tokens": 0.2}
    (finding,) = found(cut)
    assert finding.measured == (
        "of 96 episodes of the last 1 steps a limit on tokens ended 38 by max_turn_tokens (32), 19 by max_tokens (512)"
    )
    assert finding.settings.startswith("a higher --env.max_turn_tokens or --env.max_tokens")
    assert found({"ended_by/max_turn_tokens": 0.4, "ended_by/max_turns": 0.6}) == []


@pytest.mark.parametrize("values", [{"clipped_high": 0.3, "clipped_low": 0.2}, {"ess": 0.4}])
def test_a_policy_far_from_the_one_that_sampled_is_found(values: Mapping[str, float]) -> None:
    assert found(*[values] * 4) == []
    (finding,) = found(*[values] * 5)
    assert finding.kind == "clipped" and "--training.sync_interval" in finding.settings


def test_a_mismatch_is_found_at_its_first_step_and_counted() -> None:
    off = {"mismatch_alarm": 1.0, "mean_abs_logprob_difference": 0.5, "kl": 0.25}
    (finding,) = found({}, off, off, {}, facts=RunFacts(approximations=["quantization=fp8"], mismatch_bounds="0.1"))
    assert (finding.kind, finding.step, finding.last_step) == ("mismatch", 2, 3)
    assert "in 2 steps so far, now by mean |logprob difference| 0.5 and k3 0.25, above 0.1" in finding.measured
    for cause in ("quantization=fp8 of the engine", "temperature", "stale weights", "chat template", "dtype"):
        assert cause in finding.cause


def test_entropy_that_collapses_or_blows_up_is_found_unless_the_run_learns() -> None:
    before = [{"entropy": 0.5}] * 5
    assert kinds(found(*before, *[{"entropy": 0.03}] * 5)) == ["entropy_collapse"]
    assert kinds(found(*before, *[{"entropy": 1.8}] * 5)) == ["entropy_blow_up"]
    assert found(*before, *[{"entropy": 0.06}] * 5) == [] == found(*before, *[{"entropy": 0.9}] * 5)
    assert found(*before, *[rewards(0.95, entropy=0.03)] * 5) == []
    rising = [rewards(step / 40, entropy=0.5 - step / 62) for step in range(31)]
    assert found(*rising) == []


def test_a_model_that_the_first_steps_wreck_is_falling_and_not_too_hard() -> None:
    findings = found(rewards(0.3), *[FAILED] * 8, before=0.28)
    assert kinds(findings) == ["falling"] and "--training.learning_rate (now 0.0006)" in findings[0].settings
    assert "success in training is 0.000 over the last 5 steps, and held-out success was 0.280" in findings[0].measured


def test_a_reward_that_falls_late_is_found_and_one_that_varies_is_not() -> None:
    rng = random.Random(0)
    level = [{"training_reward": 0.6 + rng.gauss(0, 0.08)} for _ in range(300)]
    assert found(*level[:59]) == []
    falling = [{"training_reward": max(0.0, 0.6 - step / 30) + rng.gauss(0, 0.02)} for step in range(25)]
    assert kinds(found(*level[:40], *falling)) == ["falling"]


def test_held_out_success_that_falls_beyond_its_interval_is_found() -> None:
    diagnosis = Diagnosis(FACTS)
    for step, success in enumerate((0.5, 0.8, 0.65)):
        diagnosis.log("evaluation", step, held_out(success, 0.04))
    assert kinds(diagnosis.findings) == ["falling"]
    assert diagnosis.findings[0].measured == "held-out success is 0.650, and was 0.800 before"


def test_success_in_training_that_does_not_carry_over_is_found() -> None:
    def of(success: float, steps: int = 5, facts: RunFacts = FACTS) -> list[Finding]:
        diagnosis = Diagnosis(facts)
        for number in range(1, steps + 1):
            diagnosis.log("train", number, HEALTHY)
        diagnosis.log("evaluation", steps, held_out(success))
        return diagnosis.findings

    assert kinds(of(0.2)) == ["held_out_apart"]
    assert of(0.2)[0].measured == "success in training is 0.500 over 5 steps, and 0.200 on held-out tasks"
    assert of(0.3) == of(0.2, steps=4) == of(0.2, facts=replace(FACTS, resamples=True)) == []


def test_a_run_that_does_not_move_is_found_at_its_end_or_after_many_steps() -> None:
    rng = random.Random(1)
    level = [rewards(0.4, 0.4 + rng.gauss(0, 0.05)) for _ in range(59)]
    assert found(*level) == []
    diagnosis = Diagnosis(FACTS)
    for number, values in enumerate(level, 1):
        diagnosis.log("train", number, {**HEALTHY, **values})
    diagnosis.log("evaluation", 0, {"episodes": 0.0, "faults": 8.0})
    diagnosis.finish()
    assert kinds(diagnosis.findings) == ["not_moving"]
    assert kinds(found(*level, level[0])) == ["not_moving"]
    moved = [rewards(0.4 + step / 300) for step in range(59)]
    assert found(*moved, *moved[-20:]) == []


def test_a_finding_is_told_once_also_when_the_run_goes_on_from_a_checkpoint() -> None:
    told: list[Finding] = []
    diagnosis = Diagnosis(FACTS, told.append)
    records = [Record("train", step, {**HEALTHY, **FAILED}) for step in range(1, 9)]
    for record in records:
        diagnosis.log(*record)
    assert kinds(told) == ["too_hard"]
    diagnosis.go_back(records[:6])
    assert len(told) == 1 and [(f.step, f.last_step) for f in diagnosis.findings] == [(3, 6)]
    diagnosis.log(*records[6])
    assert len(told) == 1 and diagnosis.findings[0].last_step == 7
    assert json.loads(json.dumps(diagnosis.summary()))[0]["kind"] == "too_hard"


@pytest.mark.parametrize("name", ["demo_code_exec.json", "demo_math.json", "algorithms.json"])
def test_nothing_is_found_in_recorded_runs_that_learned(name: str) -> None:
    runs = list(_recorded(Path(__file__).parents[3] / "benchmarks" / "results" / name))
    assert runs
    for curve in runs:
        assert found(*map(_learned, curve)) == []


def _learned(reward: float) -> dict[str, float]:
    """A step of this mean reward; groups are without a signal as often as independent episodes make them."""
    signal = signals(solved=12 * reward**8, failed=12 * (1 - reward) ** 8)
    return {**rewards(reward, entropy=0.3 * (1.05 - reward)), **signal}


def _recorded(path: Path) -> Iterator[list[float]]:
    """The reward curves of a file of results."""

    def curves(value: object) -> Iterator[list[float]]:
        if isinstance(value, dict):
            if isinstance(value.get("reward_curve"), list):
                yield value["reward_curve"]
            for item in value.values():
                yield from curves(item)
        elif isinstance(value, list):
            for item in value:
                yield from curves(item)

    return curves(json.loads(path.read_text()))


def ended(*steps: Mapping[str, float], success: tuple[float, float]) -> Diagnosis:
    """The diagnosis of a whole run of these steps, with the success of its first and of its last evaluation."""
    diagnosis = Diagnosis(FACTS)
    diagnosis.log("evaluation", 0, held_out(success[0]))
    for number, values in enumerate(steps, 1):
        diagnosis.log("train", number, {**HEALTHY, **values})
    diagnosis.log("evaluation", len(steps), held_out(success[1]))
    diagnosis.finish()
    return diagnosis


def test_what_later_steps_refute_does_not_stand_at_the_end() -> None:
    rising = [rewards(step / 100) for step in range(60)]
    learned = ended(*[FAILED] * 5, *rising, success=(0.03, 0.58))
    assert learned.has_learned and learned.findings == []


def test_what_is_true_until_the_end_or_of_a_run_that_has_not_learned_stands() -> None:
    rising = [rewards(step / 100) for step in range(60)]
    cut = {"ended_by/max_turn_tokens": 0.9}
    learned = ended(*[{**step, **cut} for step in rising], success=(0.03, 0.58))
    assert learned.has_learned and kinds(learned.findings) == ["truncated"]
    not_learned = ended(*[FAILED] * 5, *[{}] * 30, *[rewards(0.0)] * 20, success=(0.03, 0.03))
    assert not not_learned.has_learned and "too_hard" in kinds(not_learned.findings)


def test_findings_of_a_run_are_said_and_kept_in_its_files(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    plan = make_plan(parse(Config, ["--env", "math", "--metrics.system_seconds", "0"], SHORT_OPTIONS), GRPO)
    with RunRecord(tmp_path) as record:
        diagnosis = RunDiagnosis(tmp_path)
        diagnosis.go_back([Record("train", step, {**HEALTHY, **FAILED}) for step in range(1, 4)])
        diagnosis.begin(cast(Run, SimpleNamespace(record=record, plan=plan)))
        findings = json.loads((tmp_path / "run.json").read_text())["findings"]
        assert [finding["kind"] for finding in findings] == ["too_hard"], "of the steps before the checkpoint"
        diagnosis.log("train", 4, {**HEALTHY, **FAILED, "mismatch_alarm": 1.0, "kl": 0.25})
        summary = diagnosis.summary()
        (hard, mismatch) = diagnosis.last_words()
    assert summary == {"findings": json.loads((tmp_path / "run.json").read_text())["findings"]}
    assert hard.startswith("may have kept this run from learning, steps 3 to 4: 48 of the last 48 groups")
    assert mismatch.startswith("may have kept this run from learning, step 4: ")
    said = [json.loads(line)["text"] for line in (tmp_path / "console.jsonl").read_text().splitlines()]
    warned = [text for text in said if "this may keep the run from learning" in text]
    assert len(warned) == 1 and warned[0].startswith(
        "warning: step 4: this may keep the run from learning: trainer and engine"
    )


def test_supervised_training_has_no_findings(tmp_path: Path) -> None:
    diagnosis = RunDiagnosis(tmp_path)
    diagnosis.begin(cast(Run, SimpleNamespace(plan=SimpleNamespace(objective=None))))
    diagnosis.log("train", 1, {})
    diagnosis.waiting({})
    assert (diagnosis.summary(), diagnosis.last_words()) == ({}, [])
