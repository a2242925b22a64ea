"""A loss and an advantage function of the user's own: what is taken, what is refused, and that it travels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import UserError
from tests.trainers.episodes import episode, group, turn
from tests.trainers.objective.loss_references import make_batch
from trainers import dapo
from trainers.config import TrainingConfig
from trainers.grpo import GRPO, Config
from trainers.losses import SimpleGRPOLoss
from trainers.objective.advantages import centred, has_signal
from trainers.objective.loss_call import LossCall
from trainers.objective.plugins import load_advantages, load_loss, load_reward, with_own_parts
from trainers.settings.tasks import EnvConfig
from trainers.setup.plan import make_plan, plan_objective

SOURCE = """
import torch

class MyLoss(torch.nn.Module):
    def __init__(self, beta=0.0):
        super().__init__()

    def forward(self, logprobs, ref_logprobs, advantages, padding_mask):
        per_token = -(logprobs - logprobs.detach()).exp() * advantages * padding_mask
        return (per_token.sum(-1) / padding_mask.sum(-1).clamp(min=1)).sum() / padding_mask.any(-1).sum()

class PerEpisode:
    normalizer_unit = "episodes"

    def __call__(self, logprobs, normalizer):
        return logprobs.sum() / normalizer

class NeedsArguments(torch.nn.Module):
    def __init__(self, beta):
        super().__init__()

def plain(logprobs, padding_mask, advantages):
    return -(logprobs * padding_mask * advantages).sum()

def unknown(logprobs, logits):
    return logprobs.sum()

def blind(advantages):
    return advantages.sum()

def ranks(rewards):
    return [float(sorted(rewards).index(reward)) for reward in rewards]

def longest(episode):
    return episode.num_sampled * (2 if episode.reward > 0 else 1)

def wrong(episode):
    return float("nan") if episode.reward > 0 else "a lot"

def raises(episode):
    return episode.no_such_thing

def two(rewards, lengths):
    return rewards

def none(episode):
    return None

def text(episode):
    return "0.5"

def boxed(episode):
    import re
    return len(re.search(r"boxed{(.*)}", episode.turns[-1].message["content"]).group(1))

def called(episode):
    return 1 / len(episode.turns[0].tool_calls)

def nan_loss(logprobs, loss_mask):
    return (logprobs * float("nan"))[loss_mask].sum()

def logarithm(logprobs, advantages):
    return (torch.log(advantages) * logprobs).sum()

def steep(logprobs):
    return (logprobs - logprobs.detach()).abs().sqrt().sum()

def zero(logprobs, advantages):
    return logprobs.sum() * 0.0

def number_zero(logprobs, advantages):
    return 0.0

def per_token(logprobs, advantages):
    return logprobs * advantages

def detached(logprobs, advantages):
    return (logprobs.detach() * advantages).sum()

def matrices(logprobs, advantages):
    return logprobs @ advantages

class OwnWeight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, logprobs):
        return self.weight.sum()

def of_entropy(entropy, loss_mask):
    return -entropy[loss_mask].mean()

def old_ratio(logprobs, old_logprobs, ref_logprobs, advantages, padding_mask):
    return -((logprobs - old_logprobs).exp().clamp(0.99, 1.01) * advantages * padding_mask).mean()

def by_deviation(rewards):
    mean = sum(rewards) / len(rewards)
    deviation = sum((reward - mean) ** 2 for reward in rewards) ** 0.5
    return [(reward - mean) / deviation for reward in rewards]

def not_a_number(rewards):
    return [float("nan")] * len(rewards)

def zeros(rewards):
    return [0.0] * len(rewards)

def fewer(rewards):
    return rewards[1:]

def texts(rewards):
    return ["0.5" for reward in rewards]

def tensor(rewards):
    return torch.tensor(rewards) - 0.5

number = 3
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_class_of_four_arguments_plugs_in(file: str) -> None:
    config = Config(training=TrainingConfig(loss=f"{file}:MyLoss", advantages=f"{file}:ranks"))
    mine = with_own_parts(GRPO.make_objective(config), config.training)
    assert mine.advantages([3.0, 1.0, 2.0]) == [2.0, 0.0, 1.0]
    assert mine.kl_reference == "generator", "there being no reference model"
    assert LossCall(mine.loss).names == {"logprobs", "reference_logprobs", "advantages", "loss_mask"}
    batch = make_batch()
    given = {"ref_logprobs": batch["reference_logprobs"], "padding_mask": batch["loss_mask"]}
    given |= {name: batch[name] for name in ("logprobs", "advantages")}
    assert mine.loss(**given).item() == pytest.approx(SimpleGRPOLoss()(**given).item())


def test_a_reward_of_the_users_own_takes_the_place_of_the_environments(file: str) -> None:
    training = TrainingConfig(reward=f"{file}:longest")
    mine = with_own_parts(GRPO.make_objective(Config()), training)
    right, wrong = episode(turn(1, 1, 1), reward=1.0), episode(turn(1, 1), reward=0.0)
    assert [mine.reward(e) for e in (right, wrong)] == [6.0, 2.0]
    assert [mine.reward.of_task(e) for e in (right, wrong)] == [6.0, 2.0]
    assert not has_signal(mine.task_rewards(group(wrong, wrong)))
    assert has_signal(mine.task_rewards(group(wrong, episode(turn(1), reward=0.0))))
    samples = replace(mine, advantages=centred).samples([group(right, wrong)])
    assert [sample.advantage for sample in samples] == [2.0, -2.0]


def test_an_algorithms_addition_is_added_to_a_users_reward_and_is_no_signal(file: str) -> None:
    config = dapo.Config(dapo=dapo.DAPOConfig(overlong_length=4, overlong_buffer=0.5))
    made = dapo.DAPO.make_objective(config)
    mine = with_own_parts(made, TrainingConfig(reward=f"{file}:longest"))
    long, short = episode(turn(1, 1, 1, 1), reward=1.0), episode(turn(1), reward=1.0)
    assert (mine.reward(long), mine.reward.of_task(long)) == (7.0, 8.0)
    assert (made.reward(long), made.reward(short)) == (0.0, 1.0)
    assert not has_signal(made.task_rewards(group(long, short)))


@pytest.mark.parametrize(
    ("name", "reward", "words"),
    [
        ("wrong", 1.0, "for episode e returned nan"),
        ("wrong", 0.0, "for episode e returned 'a lot'"),
        ("raises", 1.0, "failed on episode e: AttributeError"),
    ],
)
def test_a_reward_that_is_no_number_is_said_when_it_comes(file: str, name: str, reward: float, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_reward(f"{file}:{name}")(episode(turn(1), reward=reward))


@pytest.mark.parametrize(
    ("load", "name", "words"),
    [
        (load_loss, "MyLos", "Did you mean MyLoss"),
        (load_loss, "NeedsArguments", "every setting of the class needs a default"),
        (load_loss, "unknown", "asks for 'logits'"),
        (load_loss, "blind", "neither logprobs nor entropy"),
        (load_loss, "number", "cannot be called"),
        (load_advantages, "two", "called with one list"),
        (load_advantages, "number", "cannot be called"),
        (load_reward, "two", "called with one episode"),
        (load_reward, "number", "cannot be called"),
    ],
)
def test_parts_that_cannot_be_used(file: str, load: Callable[[str], Any], name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(f"{file}:{name}")


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("loss", "nan_loss", "on made-up values the loss is not finite"),
        ("loss", "logarithm", "on made-up values the loss is not finite"),
        ("loss", "steep", "on made-up values the gradient is not finite"),
        ("loss", "zero", "its gradient is 0 everywhere"),
        ("loss", "OwnWeight", "its gradient is 0 everywhere"),
        ("loss", "number_zero", "must return one number as a tensor that depends on"),
        ("loss", "per_token", "must return one number as a tensor that depends on"),
        ("loss", "detached", "must return one number as a tensor that depends on"),
        ("loss", "matrices", "failed on made-up values: RuntimeError: mat1"),
        *(("loss", name, "") for name in ("MyLoss", "PerEpisode", "plain", "of_entropy", "old_ratio")),
        ("advantages", "by_deviation", r"failed on the rewards \[1.0, 1.0, .*: ZeroDivisionError"),
        ("advantages", "raises", r"failed on the rewards \[.*: AttributeError"),
        ("advantages", "not_a_number", "it must give one finite number for each"),
        ("advantages", "fewer", "it must give one finite number for each"),
        ("advantages", "zeros", "so that nothing would be trained"),
        ("advantages", "texts", "'0.5' is no number"),
        *(("advantages", name, "") for name in ("ranks", "tensor")),
    ],
)
def test_parts_are_tried_for_a_plan(file: str, option: str, name: str, words: str) -> None:
    config = Config(training=TrainingConfig(**{option: f"{file}:{name}"}))
    with pytest.raises(UserError, match=f"--{option} .*{name}.*{words}") if words else nullcontext():
        plan_objective(config, GRPO)


def test_a_loss_of_a_file_is_found_from_another_folder(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(file).parent)
    sent = pickle.dumps(load_loss("mine.py:MyLoss"))
    monkeypatch.chdir(ROOT)
    assert repr(pickle.loads(sent).loss) == "MyLoss()"


def test_without_own_parts_nothing_changes() -> None:
    config = Config()
    assert with_own_parts(made := GRPO.make_objective(config), config.training) is made


def test_functions_and_objects_are_losses_too(file: str) -> None:
    assert LossCall(load_loss(f"{file}:plain")).names == {"logprobs", "loss_mask", "advantages"}
    call = LossCall(load_loss(f"{file}:PerEpisode"))
    assert call.names == {"logprobs", "normalizer"} and call.units(tokens=9, episodes=2) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text", "returned '0.5'; .* none of 2 made-up episodes"),
        ("raises", "AttributeError: .* none of 2 made-up episodes"),
        ("wrong", "returned nan; .* none of 2 made-up episodes"),
        *((name, "") for name in ("none", "boxed", "called", "longest")),
    ],
)
def test_a_reward_is_tried_for_a_plan(file: str, name: str, words: str) -> None:
    """ "called" fails for one of the two episodes, and "none" leaves both out."""
    config = Config(training=TrainingConfig(reward=f"{file}:{name}"), env=EnvConfig(name="math"))
    with pytest.raises(UserError, match=f"--reward .*{name}.*{words}") if words else nullcontext():
        make_plan(config, GRPO)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no module 'no_such_module'"):
        load_loss("no_such_module:MyLoss")


def test_losses_of_this_package_can_be_named() -> None:
    loss = load_loss("trainers.losses:SimpleGRPOLoss")
    assert "entropy" not in LossCall(loss).names and isinstance(loss.loss, SimpleGRPOLoss)  # type: ignore[attr-defined]
