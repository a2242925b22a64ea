"""Models with experts on one GPU: the trainer in bfloat16, and new weights in the engine, bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from envs.math import Math
from forge_env.core.turn import Completion
from forge_env.core.types import Message, Sampling
from forge_env.rollout.lockstep import Request
from tests.trainers.titan.test_trainer import SETTINGS as TRAINING
from tests.trainers.titan.test_trainer import make_samples
from trainers.losses import SFTLoss
from trainers.model.sizes import ModelSize
from trainers.model.tiny_model import make_tiny_model
from trainers.titan.trainer import TitanTrainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
SIZE = ModelSize(hidden_size=256, head_dim=64, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128)
SETTINGS = EngineSettings(
    max_model_len=512, max_requests=32, dtype="bfloat16", kv_cache_gib=2.0, cuda_graphs=True, gather_s=0.0
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / "model"
    chat: list[Message] = [{"role": "user", "content": "What is 12 times 30?"}, {"role": "assistant", "content": "360"}]
    make_tiny_model(folder, [(chat, Math().tools)], seed=0, size=SIZE)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(str(model), SETTINGS)
    await engine.start()
    yield engine
    await engine.close()


async def complete(engine: VLLMEngine) -> list[Completion]:
    prompts = [(number, *range(40, 60)) for number in range(8)]
    batch = [Request(prompt, Sampling(max_tokens=24, temperature=0.0), str(prompt[0])) for prompt in prompts]
    return [answer for answer in await engine.generate_batch(batch) if isinstance(answer, Completion)]


def experts_of_worker(worker: Any) -> dict[str, Any]:
    """The stacked matrices of all experts, by "layer w13" and "layer w2", on the CPU."""
    found = {}
    for name, value in worker.model_runner.model.named_parameters():
        if name.endswith(("w13_weight", "w2_weight")):
            found[f"{name.split('layers.')[1].split('.')[0]} {name.split('.')[-1]}"] = value.detach().cpu()
    return found


async def test_new_weights_arrive_bit_by_bit_over_several_swaps(engine: VLLMEngine, model: Path) -> None:
    """CUDA graphs stay valid; the kernel of the experts takes the weights as they come."""
    old = load_file(model / "model.safetensors")
    before = await complete(engine)
    for factor in (1.5, 0.75, 2.0):
        new = {name: (value * factor).cuda() for name, value in old.items()}
        await engine.update_weights(engine.version + 1, new)
        (arrived,) = await engine._command(lambda: engine._thread.engine.collective_rpc(experts_of_worker))
        assert len(arrived) == 2 * SIZE.num_hidden_layers
        for layer in range(SIZE.num_hidden_layers):
            for expert in range(SIZE.num_experts):
                start = f"model.layers.{layer}.mlp.experts.{expert}"
                gate, up, down = (
                    new[f"{start}.{name}_proj.weight"].bfloat16().cpu() for name in ("gate", "up", "down")
                )
                assert torch.equal(arrived[f"{layer} w13_weight"][expert], torch.cat([gate, up])), start
                assert torch.equal(arrived[f"{layer} w2_weight"][expert], down), start
        assert [tuple(c.logprobs) for c in await complete(engine)] != [tuple(c.logprobs) for c in before]
    await engine.update_weights(engine.version + 1, {name: value.cuda() for name, value in old.items()})
    after = await complete(engine)
    assert [tuple(c.token_ids) for c in after] == [tuple(c.token_ids) for c in before]


@pytest.mark.parametrize("changes", [{}, {"compile": True}, {"activation_checkpoint": "selective"}], ids=str)
async def test_a_trainer_in_bfloat16_learns(model: Path, changes: dict[str, Any]) -> None:
    settings = {"dtype": "bfloat16", "learning_rate": 1e-3, **changes}
    trainer = TitanTrainer(model, dataclasses.replace(TRAINING, **settings))
    try:
        losses = [trainer.train_step(make_samples(), SFTLoss())["loss"] for _ in range(4)]
        assert losses[-1] < losses[0]
    finally:
        trainer.close()


async def test_completions_have_the_experts_of_every_token(model: Path) -> None:
    """Also of a prompt that is found in the cache, which has those of the first time."""
    engine = VLLMEngine(str(model), dataclasses.replace(SETTINGS, return_routes=True))
    await engine.start()
    try:
        first, again = await complete(engine), await complete(engine)
    finally:
        await engine.close()
    for one, other in zip(first, again, strict=True):
        (routes,), (repeated,) = one.routes, other.routes
        assert routes.start == 0 and routes.tokens == len(one.prompt_ids) + len(one.token_ids) - 1
        assert routes.experts.shape[1:] == (SIZE.num_hidden_layers, SIZE.num_experts_per_tok)
        assert routes.experts.max() < SIZE.num_experts
        assert (repeated.within(0, 20).experts == routes.within(0, 20).experts).all()
