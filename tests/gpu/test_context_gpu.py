"""Context parallelism over two GPUs against one: a model as wide as Qwen3-8B with 4 layers, on rows of 32k tokens.

Also run as a script, once per rank.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_env.core.episode import Row
from trainers.batching.batch import Sample
from trainers.losses import GRPOLoss, GSPOLoss
from trainers.titan.parallel import init_process_group
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")]
ROOT = Path(__file__).parents[2]
VOCABULARY = 151_936
LONGEST = 32_768
SETTINGS = TitanSettings(learning_rate=1e-5, eps=1e-6, activation_checkpoint="selective")
CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {"max_tokens_per_micro_batch": LONGEST},
    "bfloat16, packed": {"max_tokens_per_micro_batch": LONGEST, "pack_length": LONGEST},
    "float32": {"dtype": "float32", "max_tokens_per_micro_batch": LONGEST // 8},
    "float32, packed": {"dtype": "float32", "max_tokens_per_micro_batch": LONGEST // 8, "pack_length": LONGEST // 8},
}


def make_model(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def make_samples(longest: int) -> list[Sample]:
    """An episode as long as a micro-batch, and two that fill one together; half of the tokens are sampled."""
    rng = random.Random(0)

    def row(length: int) -> Row:
        mask = tuple(place > 0 and place // 64 % 2 == 1 for place in range(length))
        return Row(
            token_ids=tuple(rng.randrange(VOCABULARY) for _ in range(length)),
            loss_mask=mask,
            generator_logprobs=tuple(rng.gauss(-12.0, 0.1) if sampled else 0.0 for sampled in mask),
            versions=tuple(0 if sampled else -1 for sampled in mask),
        )

    advantages = {longest: 1.0, longest * 5 // 8: -0.5, longest * 3 // 8: 0.25}
    return [Sample(rows=(row(length),), advantage=advantage) for length, advantage in advantages.items()]


def be_a_rank(folder: Path, cp: int) -> None:
    """Take the steps of every case, and write what they gave."""
    init_process_group()
    results = {}
    for case, changes in CASES.items():
        torch.cuda.reset_peak_memory_stats()
        trainer = TitanTrainer(folder / "model", dataclasses.replace(SETTINGS, cp=cp, **changes))
        samples = make_samples(changes["max_tokens_per_micro_batch"])
        logprobs = [values.tolist() for values in trainer.logprobs(samples)]
        losses = GRPOLoss(aggregation="token"), GSPOLoss(clip_low=0.2, clip_high=0.2)
        steps = [trainer.train_step(samples, loss) for loss in losses]
        gib = torch.cuda.max_memory_allocated() / 2**30
        print(f"cp {cp}, {case}: {gib:.1f} GiB, {steps[-1]['seconds']:.2f} s", flush=True)
        results[case] = {"logprobs": logprobs, "steps": steps}
        del trainer
        gc.collect()
        torch.cuda.empty_cache()
    (folder / f"cp {cp} {os.environ['RANK']}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def run_ranks(folder: Path, cp: int) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in map(str, range(cp)):
        env = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(cp), "MASTER_ADDR": "127.0.0.1"}
        env |= {"MASTER_PORT": port, "PYTHONPATH": str(ROOT), "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        ranks.append(subprocess.Popen([sys.executable, __file__, str(folder), str(cp)], env=env, cwd=ROOT))
    try:
        codes = [process.wait(timeout=600) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert codes == [0] * cp
    return [json.loads((folder / f"cp {cp} {rank}.json").read_text()) for rank in range(cp)]


@pytest.mark.timeout(1300)
def test_two_gpus_that_share_rows_take_the_steps_of_one(tmp_path: Path) -> None:
    (alone,) = run_ranks(tmp_path, 1)
    together = run_ranks(tmp_path, 2)
    for case in CASES:
        noise = 1e-3 if case.startswith("float32") else 2e-2
        for found in together:
            assert found[case]["logprobs"] == together[0][case]["logprobs"]
            for ours, expected in zip(found[case]["logprobs"], alone[case]["logprobs"], strict=True):
                difference = sum(abs(one - other) for one, other in zip(ours, expected, strict=True)) / len(expected)
                assert difference < noise
            for ours, expected in zip(found[case]["steps"], alone[case]["steps"], strict=True):
                assert ours["loss"] == pytest.approx(expected["loss"], rel=noise, abs=noise / 10)
                assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=noise)
                assert ours["tokens"] == expected["tokens"] and not ours["skipped"]


if __name__ == "__main__":
    if not (Path(sys.argv[1]) / "model").is_dir():
        make_model(Path(sys.argv[1]) / "model")  # one rank runs alone, and first
        torch.cuda.empty_cache()
    be_a_rank(Path(sys.argv[1]), int(sys.argv[2]))
