"""The benchmark of large models: its environment, its models, its options and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.rendering import Renderer
from agents.token_agent import TokenAgent
from benchmarks.gpu import large
from benchmarks.gpu.fixed_length import FixedLength
from benchmarks.gpu.flops import step_flops
from benchmarks.gpu.models import make_random_model
from benchmarks.gpu.runs import memory_of, mismatch_of, plan_of, seconds_of
from forge_env.core.episode import Episode
from forge_env.core.turn import Completion
from forge_env.core.types import EpisodeLimits, Sampling
from forge_env.registry.contrib import rows
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from trainers.families.shape import ModelShape
from trainers.families.table import read_shape

MEASURED = pytest.mark.skipif(not rows("observers"), reason="no part that measures the machine is installed")


class Sampler:
    """A policy that samples one token again and again, and ends some turns early."""

    def __init__(self, stop: int, *, early: int = 0) -> None:
        self._stop, self._early, self._calls = stop, early, 0

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, request_id: str, session: str) -> Completion:
        self._calls += 1
        ends = self._calls == self._early
        tokens = (40, 41, self._stop) if ends else (40,) * sampling.max_tokens
        return Completion(
            prompt_ids=tuple(prompt_ids),
            token_ids=tokens,
            logprobs=(-1.0,) * len(tokens),
            versions=((0, len(tokens)),),
            finish_reason="stop" if ends else "length",
        )


async def play(model: Path, split: str, *, early: int = 0) -> Episode:
    factory = EnvFactory(FixedLength, tokens=512, sampled=0.25, turns=4)
    agent = TokenAgent(str(model), Sampler(Renderer(model).stop_token_ids[0], early=early))
    limits = EpisodeLimits(max_turns=16, max_turn_tokens=512, max_tokens=512)
    (task,) = factory.tasks(split, count=1)
    return await run_episode(factory, agent, task, seed=3, episode_id="0", limits=limits)


@pytest.mark.parametrize("early", [0, 1, 3])
async def test_an_episode_has_the_length_that_is_asked_for(tiny_model: Path, early: int) -> None:
    episode = await play(tiny_model, "train", early=early)
    assert episode.outcome.is_valid and episode.reward is not None
    (row,) = episode.rows
    assert len(row.token_ids) == 512
    assert len(episode.turns) >= 4 and 100 <= episode.num_sampled <= 200


async def test_a_held_out_episode_is_short(tiny_model: Path) -> None:
    episode = await play(tiny_model, "test")
    assert len(episode.turns) == 1 and episode.num_sampled == 16


def test_a_shape_can_be_cut_and_the_trainers_code_reads_it(tiny_model: Path, tmp_path: Path) -> None:
    parameters = make_random_model("tiny", tiny_model, tmp_path / "cut", layers=1)
    shape = read_shape(tmp_path / "cut")
    assert shape.num_hidden_layers == 1 and shape.parameters == parameters


def given(*options: str) -> Any:
    """The options of a case as its runs get them, but for the model."""
    return large.read_arguments(["shared", *options])


@MEASURED
@pytest.mark.parametrize("shape", ["8B", "14B"])
def test_a_trainer_over_two_gpus_and_two_engines_beside_it_can_be_planned(shape: str) -> None:
    options = [f"--model=Qwen/Qwen3-{shape}", "--launcher.gpus_per_host=4", "--launcher.gpu_memory_gib=141"]
    options += ["--generator.with_gpus", "--trainer.with_gpus", *large.episode_options(given()), *large.APART]
    options += [large.BF16_STATE, *large.FAST, "--trainer.procs=2", "--services.generator.num_replicas=2"]
    plan = plan_of([*options, "--training.activation_checkpoint=attention", "--training.staleness=1"])
    assert not [problem for problem in plan.problems if problem.startswith("a GPU has ")]
    assert [card.where for card in plan.cards] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]


@MEASURED
@pytest.mark.parametrize("cards, gib", [(1, 141), (2, 80), (2, 141)])
def test_the_runs_of_an_8b_shape_can_be_planned(cards: int, gib: int) -> None:
    """On two cards of 80 GB with offload, and on two of 141 GB; one card of 141 GB is too small for float32 moments."""
    options = ["--model=Qwen/Qwen3-8B", f"--launcher.gpus_per_host={cards}", f"--launcher.gpu_memory_gib={gib}"]
    options += ["--generator.with_gpus", "--trainer.with_gpus", f"--trainer.procs={cards}"]
    options += [*large.episode_options(given()), *large.SHARED, *large.FAST, "--training.activation_checkpoint=full"]
    plan = plan_of([*options, *(["--training.cpu_offload"] if gib == 80 else [])])
    too_full = [problem for problem in plan.problems if problem.startswith("a GPU has ")]
    assert bool(too_full) is (cards == 1)
    assert "sleeps while the trainer steps" in plan.about_engine
    assert plan.config.env.max_tokens == plan.config.env.limits().max_tokens == 8192


def test_every_setting_whose_mismatch_is_measured_passes() -> None:
    for options in large.MISMATCHES.values():
        plan = plan_of(["--model=Qwen/Qwen3-0.6B", "--generator.with_gpus", "--trainer.with_gpus", *options])
        assert not [problem for problem in plan.problems if "services.generator.engine" in problem]


def test_operations_of_a_step() -> None:
    shape = ModelShape(
        max_position_embeddings=1024,
        hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=4, vocab_size=10,
    )  # fmt: skip
    layers = 6 * 2 * shape.layer_parameters * 30
    attention = 6 * 2 * 8 * (100 + 400)
    assert step_flops(shape, [10, 20], 5) == layers + 6 * 8 * 10 * 5 + attention
    frozen = layers * 4 / 6 + 6 * 7 * 30
    assert step_flops(shape, [10, 20], 5, adapters=7) == frozen + 4 * 8 * 10 * 5 + attention, "no gradients of weights"


def test_the_mismatch_of_each_step_has_every_depth_of_context_of_any() -> None:
    steps = [{"kl": 1.0, "kl_k1": 9.0, "loss": 9.0}, {"kl": 2.0, "kl_from/2048": 3.0}]
    assert mismatch_of(steps) == {"kl": [1.0, 2.0], "kl_from/2048": [None, 3.0]}


def test_seconds_are_medians_and_their_ratios() -> None:
    step = {"seconds": 4.0, "seconds/step": 11.0, "seconds/rollout": 5.0, "seconds/train": 5.0, "seconds/fetch": 0.1}
    found = seconds_of([step, step | {"seconds/step": 99.0}, step])
    assert found["step"] == 11.0 and found["step_over_parts"] == 1.1
    assert found["mean_step"] == pytest.approx(121 / 3)
    assert found["step_over_strict_parts"] == pytest.approx(11 / 9)
    assert found["weights_over_step"] == pytest.approx(0.1 / 11)


def test_memory_is_compared_by_gpu_and_service(tmp_path: Path) -> None:
    options = ["--model=Qwen/Qwen3-0.6B", "--launcher.gpus_per_host=1", "--launcher.gpu_memory_gib=80"]
    plan = plan_of([*options, "--generator.with_gpus", "--trainer.with_gpus", "--launcher.share_gpus=yes"])
    (card,) = plan.cards
    trainer = max(parts["trainer"] for parts in card.phases.values())
    values = {"gpu/0/memory_used_bytes": card.worst / 1.1, "gpu/0/memory_bytes/trainer": trainer}
    lines = [{"phase": "system", "step": 1, "time": 1.0} | values, {"phase": "system", "step": 2, "time": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    found = memory_of(tmp_path, plan)["GPU 0"]
    assert found["all"]["plan_above_percent"] == 10.0 and found["trainer"]["plan_above_percent"] == 0.0
    assert found["generator"]["measured_gib"] is None


def test_how_many_times_as_fast_a_run_ahead_is() -> None:
    by_turns = {"seconds": {"mean_step": 40.0, "rollout": 22.0, "trainer": 18.0}}
    speed = {"step_over_longer": 25 / 22, "times_the_speed_of_by_turns": 1.6}
    assert large.compared({"seconds": {"mean_step": 25.0}}, by_turns) == speed
    assert large.compared({}, by_turns) == {}, "it had no steps to count"
