"""Options that change nothing in a run are named in its plan, with the reason; options that count are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.utils.settings import leaves
from trainers import dapo, reinforce, sft
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO
from trainers.setup.checks.no_effect import RULES, no_effect
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

BIG = "--model=Qwen/Qwen3-0.6B"
NAMED: list[tuple[str, list[str]]] = [
    ("--trainer.ping_seconds=5", ["--services.trainer.ping_seconds 5.0, because the trainer is not pinged"]),
    ("--lora.alpha=8", ["--lora.alpha 8.0, because --lora.rank is 0, and all weights are trained"]),
    (f"{BIG} --lora.rank=4 --lora.alpha=8", []),
    ("--grpo.kl=k1", ["--grpo.kl k1, because --grpo.beta is 0, and there is no KL penalty"]),
    ("--grpo.kl=k2 --grpo.beta=0.1", []),
    ("--grpo.constant=5", ["--grpo.constant 5.0, because --grpo.aggregation is token"]),
    ("--grpo.constant=5 --grpo.aggregation=constant", []),
    (
        "--ref_model.num_replicas=2",
        ["--services.ref_model.num_replicas 2, because no reference model is started: nothing asks for one"],
    ),
    ("--ref_model.procs=1 --ref_model.num_replicas=2 --grpo.beta=0.1", []),
    ("--moe.record_routes", ["--moe.record_routes True, because the model has no experts"]),
    ("--model.size=tiny-moe --moe.record_routes", []),
    (
        "--model.size=tiny-moe --moe.record_routes --moe.replay=off",
        ["--moe.record_routes True, because the trainer does not replay the engine's routes"],
    ),
    ("--training.keep_logits_gib=1", ["--training.keep_logits_gib 1.0, because the trainer is on the CPU"]),
    (f"{BIG} --warmup.until_success=0.5", ["--warmup.until_success 0.5, because --warmup.steps is 0"]),
    (f"{BIG} --warmup.until_success=0.5 --warmup.steps=5", []),
    (
        "--warmup.until_success=1 --warmup.probe_every=4",
        ["--warmup.probe_every 4, because --warmup.until_success is 1.0, and nothing is probed"],
    ),
    (
        "--launcher.lease_seconds=9",
        ["--launcher.lease_seconds 9.0, because --launcher.kind is local: there is one machine"],
    ),
    (
        "--grpo.correction=none --grpo.correction_high=7",
        ["--grpo.correction_high 7.0, because --grpo.correction is none"],
    ),
    (
        "--loss=trainers.losses:GRPOLoss --grpo.clip_high=0.2",
        ["--grpo.clip_high 0.2, because --loss is a loss of your own"],
    ),
    (
        "--model.new_rows=on",
        ["--model.new_rows on, because there is no --model: a model made on the spot learns all rows"],
    ),
    (
        "--training.cache_on_update=recompute",
        ["--training.cache_on_update recompute, because --training.staleness is 0"],
    ),
    ("--training.cache_on_update=recompute --training.staleness=1", []),
    ("--training.fp32_head", ["--training.fp32_head True, because the trainer computes in float32"]),
    (
        "--training.reshard_after_forward=never",
        ["--training.reshard_after_forward never, because one process has all weights"],
    ),
    (
        "--env.on_fault=drop --env.min_valid=4",
        ["--env.min_valid 4, because --env.on_fault is drop: one fault drops a group"],
    ),
    ("--env.on_fault=shrink --env.min_valid=4", []),
    (
        "--evaluation.greedy=false --evaluation.temperature=0",
        ["--evaluation.greedy False, because --evaluation.temperature is 0"],
    ),
    (
        "--checkpoint.keep_last=5",
        ["--checkpoint.keep_last 5, because --checkpoint.interval is 0: there is one checkpoint, after the last step"],
    ),
    ("--checkpoint.keep_last=5 --evaluation.interval=2", []),
    (
        "--checkpoint.keep_best=false",
        [
            "--checkpoint.keep_best False, because --evaluation.interval is 0: no step between the first and the last "
            "is evaluated"
        ],
    ),
    ("--launcher.hosts=1", ["--launcher.hosts 1, because --launcher.kind is local: there is one machine"]),
    ("", []),
]


def found(options: str, algorithm: Algorithm = GRPO) -> list[str]:
    return no_effect(make_plan(read_config(algorithm.config, options.split()), algorithm))


@pytest.mark.parametrize(("options", "sentences"), NAMED)
def test_an_option_without_effect_is_named_with_the_reason(options: str, sentences: list[str]) -> None:
    assert found(options) == sentences


def test_other_algorithms_and_supervised_training(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    assert found("--reinforce.kl=k1", reinforce.REINFORCE) == [
        "--reinforce.kl k1, because --reinforce.beta is 0, and there is no KL penalty"
    ]
    assert found("--dapo.overlong_penalty=0 --dapo.overlong_buffer=0.5", dapo.DAPO) == [
        "--dapo.overlong_buffer 0.5, because --dapo.overlong_penalty is 0"
    ]
    assert found("", sft.SFT) == [] == found(f"--sft.data={chats}", sft.SFT)
    named = found(f"--sft.data={chats} --warmup.batch_size=4 --env.max_turns=2", sft.SFT)
    assert named == [
        "--env.max_turns 2, because there is no environment",
        "--warmup.batch_size 4, because --sft.data has the demonstrations",
    ]


def test_every_rule_names_settings_that_there_are() -> None:
    names = {
        setting.name.replace(algorithm.config().algorithm_name or "-", "ALG", 1)
        for algorithm in (GRPO, dapo.DAPO, reinforce.REINFORCE)
        for setting in leaves(algorithm.config())
    }
    named = {name for rule in RULES for name in rule.names.split()}
    unknown = {name for name in named if not any(f"{known}.".startswith(f"{name.rstrip('.')}.") for known in names)}
    assert unknown == set()
