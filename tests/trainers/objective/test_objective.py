"""From groups to samples: rewards, baselines, what is left out, and what each algorithm's page asks for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from forge_env.core.episode import Episode, Group, Turn
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from tests.trainers import episodes
from tests.trainers.episodes import TASK, group, turn
from trainers import grpo
from trainers.algorithm import find_algorithm, kl_warning
from trainers.config import SHORT_OPTIONS
from trainers.dapo import OverlongPunishment, is_truncated
from trainers.losses import SimpleGRPOLoss
from trainers.objective.advantages import centred, no_baseline
from trainers.objective.loss_call import LossCall
from trainers.objective.objective import Objective
from trainers.objective.reward import TrainingReward
from trainers.setup.options.defaults import take_defaults
from trainers.setup.options.parser import parse

PAGES = ("grpo", "dapo", "gspo", "sapo", "cispo", "reinforce")


def episode(reward: float, *, tokens: int = 1, outcome: Outcome = Outcome.SCORED, name: str = "e") -> Episode:
    return episodes.episode(turn(*[1] * tokens, logprobs=[-0.5] * tokens), reward=reward, outcome=outcome, name=name)


def rewarded(*rewards: float) -> Group:
    return group(*map(episode, rewards))


def make_objective(**parts: Any) -> Objective:
    return Objective(**{"loss": torch.nn.Identity(), "advantages": centred, "group_size": 2, **parts})


def advantages(objective: Objective, *groups: Group) -> list[float]:
    return [sample.advantage for sample in objective.samples(groups)]


def made(page: str, *arguments: str) -> Objective:
    algorithm = find_algorithm(f"trainers.{page}:{page.upper()}")
    config = parse(algorithm.config, list(arguments), SHORT_OPTIONS)
    return algorithm.make_objective(take_defaults(config, None)[0])


# ---- samples ----


def test_a_baseline_is_its_groups_own() -> None:
    assert advantages(make_objective(), rewarded(1, 0), rewarded(4, 0)) == [0.5, -0.5, 2.0, -2.0]


def test_the_scale_comes_from_all_groups_of_the_step() -> None:
    seen: list[Sequence[float]] = []

    def scale(rewards: Sequence[float]) -> float:
        seen.append(rewards)
        return 2.0

    assert advantages(make_objective(scale=scale), rewarded(1, 0), rewarded(4, 0)) == [0.25, -0.25, 1.0, -1.0]
    assert seen == [[1, 0, 4, 0]]


def test_episodes_left_out_of_the_loss_stay_in_the_baseline() -> None:
    cut = episode(0.0, outcome=Outcome.TRUNCATED)
    objective = make_objective(skips=is_truncated)
    assert advantages(objective, group(episode(1.0), cut)) == [0.5]
    assert advantages(make_objective(), group(episode(1.0), cut)) == [0.5, -0.5]


def test_advantages_are_taken_of_the_shaped_reward() -> None:
    punishment = OverlongPunishment(length=100, buffer=0.2)
    members = group(episode(1.0, tokens=10), episode(1.0, tokens=90))
    assert advantages(make_objective(reward=TrainingReward(addition=punishment.of_episode)), members) == [0.25, -0.25]


def test_a_first_token_of_a_row_is_no_target_of_a_reference() -> None:
    one = episode(1.0, tokens=3)
    bare = replace(one, turns=(replace(one.turns[0], prompt_ids=()),))
    (sample,) = make_objective(kl_reference="generator").samples([group(bare)])
    assert sample.reference_logprobs.tolist() == [-0.5, -0.5]


def test_faults_take_no_part() -> None:
    fault = Episode(task=TASK, turns=(), outcome=Outcome.INFRA_FAULT, reward=None, id="f", error="gone")
    assert advantages(make_objective(), group(episode(1.0), fault, episode(0.0))) == [0.5, -0.5]


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_a_turn_that_no_engine_sampled_is_refused(kind: str) -> None:
    """An expert's tokens have no logprobs: read as 0 they would be tokens that the engine was certain of."""
    shown = Turn(
        kind=kind,  # type: ignore[arg-type]
        observation=(),
        message={"role": "assistant", "content": "4"},
        token_ids=(1, 2) if kind == "tokens" else (),
        starts_row=True,
    )
    members = group(episode(1.0), replace(episode(0.0), turns=(shown,)))
    with pytest.raises(UserError, match=rf"the episode 1 has a turn of the kind '{kind}'.*trainers\.sft"):
        make_objective().samples([members])


def test_an_episode_without_a_turn_is_one_of_its_group() -> None:
    """Its prompt left no room to answer."""
    empty = replace(episode(0.0, outcome=Outcome.TRUNCATED), turns=())
    assert advantages(make_objective(), group(episode(1.0), empty)) == [0.5, -0.5]


# ---- pages ----


@pytest.mark.parametrize("page", PAGES)
def test_what_all_pages_share(page: str) -> None:
    """A loss that the trainer can call, settings that reach it, credit, and a baseline that needs siblings."""
    objective = made(page)
    assert objective.group_size == 8 and objective.kl_reference == ""
    assert {"logprobs", "generator_logprobs", "advantages", "loss_mask", "normalizer"} <= LossCall(objective.loss).names
    assert "entropy" not in LossCall(objective.loss).names
    assert "entropy" in LossCall(made(page, "--training.entropy_coef", "0.01").loss).names
    options = {"beta": 0.25, "kl": "k1", "aggregation": "constant", "constant": 64.0}
    options |= {"correction": "truncate", "correction_high": 2.0}
    given = made(page, *(f"--{page}.{name}={value}" for name, value in options.items()))
    assert {name: getattr(given.loss, name) for name in options} == options
    assert given.kl_reference == "generator"
    assert made(page, f"--{page}.aggregation", "constant", "--env.max_tokens", "99").loss.constant == 99
    assert (objective.credit, made(page, f"--{page}.credit", "turn").credit) == ("episode", "turn")
    assert objective.needs_siblings
    with pytest.raises(UserError, match=rf"--{page}\.n_samples is 1"):
        made(page, f"--{page}.n_samples", "1")
    if page != "dapo":  # MaxRL
        objective = made(page, f"--{page}.normalization", "mean")
        assert objective.scale is None and objective.advantages([1.0, 0.0, 0.0, 0.0]) == [3.0, -1.0, -1.0, -1.0]


def test_dr_grpo_is_a_setting_of_grpo() -> None:
    objective = made("grpo", "--grpo.aggregation", "constant", "--grpo.normalization", "none")
    assert objective.loss.constant == 512 and objective.advantages([1.0, 0.0]) == [0.5, -0.5]


def test_rloo_is_a_setting_of_reinforce() -> None:
    assert made("reinforce", "--reinforce.baseline", "leave_one_out").advantages([1.0, 0.0, 0.0]) == [1.0, -0.5, -0.5]
    assert made("reinforce", "--reinforce.baseline", "none", "--reinforce.n_samples", "1").advantages is no_baseline
    assert not made("reinforce", "--reinforce.baseline", "none").needs_siblings
    assert made("reinforce", "--reinforce.clip_ratio", "0").loss.clip_ratio is None


def test_dapos_parts_are_settings_of_its_page() -> None:
    objective = made("dapo")
    assert objective.needs_signal and objective.skips is None and objective.reward.addition is not None
    other = made("dapo", "--dapo.dynamic_sampling", "false", "--dapo.overlong_filtering", "true")
    assert not other.needs_signal and other.skips is is_truncated
    with pytest.raises(UserError, match="overlong_buffer 2"):
        made("dapo", "--dapo.overlong_buffer", "2")


def shaped(objective: Objective, tokens: int, *, prompt: int = 1) -> float:
    """What DAPO makes of the reward 1 of an episode with so many sampled tokens."""
    one = episode(1.0, tokens=tokens)
    return objective.reward(replace(one, turns=(replace(one.turns[0], prompt_ids=(0,) * prompt),)))


@pytest.mark.parametrize(
    ("arguments", "prompt", "most"),
    [
        ((), 20, 3 * 32),  # the defaults: every turn as long as it may be
        (("--env.max_turns", "8", "--env.max_turn_tokens", "512"), 100, 512 - 100),  # until the context is full
        (("--env.max_tokens", "64", "--env.max_turn_tokens", "64", "--env.max_turns", "1"), 14, 50),
        (("--dapo.overlong_length", "40"), 20, 40),
    ],
)
def test_an_episode_that_samples_all_it_can_loses_the_whole_penalty(
    arguments: Sequence[str], prompt: int, most: int
) -> None:
    objective = made("dapo", *arguments)
    assert shaped(objective, most, prompt=prompt) == 0.0
    assert shaped(objective, round(0.9 * most), prompt=prompt) == pytest.approx(0.5, abs=0.05)
    assert shaped(objective, int(0.8 * most), prompt=prompt) == 1.0


@pytest.mark.parametrize(
    ("arguments", "remarks"),
    [
        ("--grpo.beta 0.1 --grpo.kl k1", True),
        ("--grpo.beta 0.1 --grpo.kl k1 --grpo.kl_in reward", False),
        ("--grpo.beta 0.1 --grpo.kl k2", False),
        ("--grpo.beta 0.1", False),
        ("--grpo.kl k1", False),
        ("--grpo.beta 0.1 --grpo.kl k1 --loss module:Loss", False),
    ],
)
def test_a_penalty_without_an_expected_gradient_is_remarked_on(arguments: str, remarks: bool) -> None:
    said = kl_warning(parse(grpo.Config, arguments.split(), SHORT_OPTIONS))
    assert bool(said) == remarks
    assert not remarks or "--grpo.kl k2" in said


def test_a_reward_function_is_asked_once_for_each_episode_while_it_lives() -> None:
    """A model that judges may change its mind, between dynamic sampling and the step too."""
    answers = iter([1.0, 0.0, 0.5, 0.25])
    objective = Objective(
        loss=SimpleGRPOLoss(),
        advantages=centred,
        group_size=2,
        reward=TrainingReward(user_reward=lambda e: next(answers)),
    )
    judged = group(episode(0.0), episode(0.0))
    assert objective.task_rewards(judged) == [1.0, 0.0]
    assert objective.rewards([judged]) == [[1.0, 0.0]]
    assert [sample.advantage for sample in objective.samples([judged])] == [0.5, -0.5]
    assert objective.task_rewards(group(episode(0.0), episode(0.0))) == [0.5, 0.25]
    assert list(objective.reward._cache) == list(map(id, judged.episodes)), "what is gone is forgotten"
    changed = replace(objective.reward, user_reward=lambda e: 7.0)
    assert changed.of_task(judged.episodes[0]) == 7.0, "another function has answers of its own"


def test_a_reward_function_is_asked_for_one_episode_at_a_time() -> None:
    """With dynamic sampling the threads of several groups ask at once."""
    running: list[str] = []
    most: list[int] = []
    second = threading.Event()

    def slow(e: Episode) -> float:
        running.append(e.id)
        second.wait(0.05)  # set if another call begins meanwhile
        most.append(len(running))
        if len(running) > 1:
            second.set()
        running.remove(e.id)
        return 1.0

    reward = TrainingReward(user_reward=slow)
    threads = [threading.Thread(target=reward.of_task, args=(episode(0.0, name=str(i)),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
