"""The proof of a family of models, the same for all: trainer, transformers and engine compute the same logprobs.

`prove` measures each pair before and after training, with packed rows, and with an export that transformers reads.
`two_steps_of_grpo` is a run of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from agents.model_folder import config_of
from forge_env.core.episode import Row
from forge_env.core.types import Sampling
from trainers.batching.batch import Sample
from trainers.losses import SFTLoss
from trainers.titan.trainer import TitanSettings, TitanTrainer

CLOSE = 3e-5
"""The largest difference of a token's logprob, in nats, in float32 on a CPU."""
SETTINGS = TitanSettings(dtype="float32", learning_rate=1e-3)


def transformers_logprobs(folder: Path, ids: list[int]) -> np.ndarray:
    """Logprobs of a row's tokens after the first, by transformers: float32."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
    return logits.log_softmax(-1)[0, :-1].gather(-1, tokens[0, 1:, None])[:, 0].numpy()


def random_row(folder: Path, length: int, seed: int = 0) -> list[int]:
    """A row of random tokens of a folder's vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config_of(folder)["vocab_size"], (length,), generator=generator).tolist()


async def prove(folder: Path, out: Path, *, length: int, settings: TitanSettings = SETTINGS) -> dict[str, float]:
    """The largest difference of a token's logprob for each comparison, in nats.

    Args:
        folder: of a tiny random model, whose features a row of `length` reaches: longer than each window, for example.
        out: where the trained model is exported.
        length: tokens of the longest row.
        settings: of the trainer.

    Returns:
        By comparison. "trained" is how far two steps have moved the logprobs: it must be large.
    """
    ids, found = random_row(folder, length), {}
    engine = VLLMEngine(str(folder), EngineSettings(max_model_len=length + 1, max_requests=4))
    with _same_class(folder):
        await engine.start()  # first: a trainer joins its process group, and leaves before it ends
    try:
        trainer = TitanTrainer(str(folder), settings)
        try:
            ours, theirs = trainer.score(ids), transformers_logprobs(folder, ids)
            found["transformers"] = _apart(ours, theirs)
            found["prompt"] = _apart(await engine.score(ids, "prompt"), theirs)
            found["decode"] = await _decode(engine, trainer, ids[:5], length)
            found["packed"] = _packed(folder, trainer, length, settings)
            for _ in range(2):
                trainer.train_step(_samples(folder, length), SFTLoss())
            trained = trainer.score(ids)
            found["trained"] = _apart(trained, ours)
            with trainer.model.weights.stream(torch.float32) as tensors:
                await engine.update_weights(1, {name: tensor.clone() for name, tensor in tensors})
            found["swap"] = _apart(await engine.score(ids, "swap"), trained)
            found["decode after swap"] = await _decode(engine, trainer, ids[:5], length)
            trainer.export_hf(out)
            found["export"] = _apart(transformers_logprobs(out, ids), trained)
        finally:
            trainer.close()
    finally:
        await engine.close()
    return found


@contextmanager
def _same_class(folder: Path) -> Iterator[None]:
    """Undo what an engine does to transformers' class of the model: in a run it has a process of its own.

    vLLM compiles a module of transformers by changes of its class, after which only an engine can make one.
    """
    kind: Any = AutoModel._model_mapping[type(AutoConfig.from_pretrained(folder))]
    bases, init, call = kind.__bases__, kind.__init__, vars(kind).get("__call__")
    yield
    kind.__bases__, kind.__init__ = bases, init
    if call is None and "__call__" in vars(kind):
        del kind.__call__


def wrong(found: dict[str, float]) -> dict[str, float]:
    """The comparisons that are not as close as they must be; none after a proof."""
    moved = {"trained": found["trained"]} if found["trained"] < 100 * CLOSE else {}
    return moved | {name: value for name, value in found.items() if name != "trained" and not value <= CLOSE}


async def _decode(engine: VLLMEngine, trainer: TitanTrainer, prompt: list[int], length: int) -> float:
    """Of tokens that the engine samples one by one."""
    sampling = Sampling(max_tokens=length - len(prompt), seed=1)
    completion = await engine.generate(prompt, sampling, f"decode {engine.version}")
    assert len(completion.token_ids) > length // 2
    return _apart(completion.logprobs, trainer.score([*prompt, *completion.token_ids])[len(prompt) - 1 :])


def _packed(folder: Path, trainer: TitanTrainer, length: int, settings: TitanSettings) -> float:
    """Of rows in one sequence, against each alone."""
    samples = _samples(folder, length)
    packing = TitanTrainer(str(folder), replace(settings, pack_length=2 * length))
    try:
        together = packing.logprobs(samples)
    finally:
        packing.close()
    alone = [trainer.score(sample.rows[0].token_ids.tolist()) for sample in samples]
    return max(map(_apart, together, alone))


def _samples(folder: Path, length: int) -> list[Sample]:
    """Rows of different lengths, the longest of `length`."""
    lengths = (length, length // 2, length // 3, length // 7)
    return [
        Sample(
            rows=(
                Row(
                    token_ids=random_row(folder, size, seed=size),
                    loss_mask=[False, *[True] * (size - 1)],
                    generator_logprobs=[0.0, *[-4.0] * (size - 1)],
                    versions=[-1, *[0] * (size - 1)],
                ),
            )
        )
        for size in lengths
    ]


def _apart(ours: object, theirs: object) -> float:
    return float(np.abs(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)).max())


def with_tokenizer(folder: Path, like: Path) -> Path:
    """Give a folder the tokenizer and the template of another one, whose tokens its vocabulary has."""
    for path in like.iterdir():
        if path.name != "config.json" and path.suffix != ".safetensors":
            shutil.copy(path, folder)
    return folder


def two_steps_of_grpo(folder: Path, out: Path, *options: str) -> list[dict[str, float]]:
    """What a real run of two steps writes for each: both train, whatever the rewards, and the engine gets weights."""
    (out / "constant.py").write_text("def half(episode):\n    return 0.5\n")
    command = [
        *(sys.executable, "-m", "trainers.grpo", "--model", str(folder), "--output", str(out / "run")),
        *("--env", "math", "--reward", f"{out}/constant.py:half", "--training.entropy_coef", "0.01"),
        *("--steps", "2", "--training.batch_size", "2", "--grpo.n_samples", "2", "--warmup.steps", "0"),
        *("--tasks", "64", "--dataset.held_out", "4", "--env.max_turns", "2", "--env.max_turn_tokens", "32"),
        *("--env.max_tokens", "4000"),
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    records = map(json.loads, (out / "run" / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["phase"] == "train"]
