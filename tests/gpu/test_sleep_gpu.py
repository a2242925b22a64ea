"""An engine that sleeps: the driver gets its memory back, new weights wake it, and it says the same as before.

Each engine is in a process of its own: vLLM's memory pool serves one engine of a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_env.core.errors import UserError
from tests.gpu.test_runs_gpu import ROOT, check, run
from tests.helpers.pages import OBSERVED
from trainers.grpo import GRPO, Config
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
GIB = 2**30
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}

ENGINE = """
import asyncio, json, sys
import torch
from safetensors.torch import load_file
from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings

from forge_env.core.types import Sampling

folder = sys.argv[1]
SETTINGS = EngineSettings(
    max_model_len=1024, max_requests=64, dtype="bfloat16", kv_cache_gib=8.0, cuda_graphs=True, sleep=True
)


def used():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


async def greedy(engine, name):
    sampling = Sampling(max_tokens=48, temperature=0.0)
    calls = [engine.generate([i + 1, 50, *range(70, 90)], sampling, f"{name}/{i}") for i in range(8)]
    return [(c.token_ids.tolist(), c.versions) for c in await asyncio.gather(*calls)]


async def main():
    engine = VLLMEngine(folder, SETTINGS)
    await engine.start()
    weights = {name: value.float().cuda() for name, value in load_file(folder + "/model.safetensors").items()}
    found = {"before": await greedy(engine, "before"), "awake": used(), "rounds": []}
    for version in (1, 2):
        running = asyncio.ensure_future(engine.generate([1, 2], Sampling(max_tokens=400, temperature=0.0), "running"))
        await asyncio.sleep(0)  # one turn of the loop: it is sent before the next one
        await engine.generate([1], Sampling(max_tokens=1), "marker")
        await engine.sleep()
        asleep = used()
        waiting = asyncio.ensure_future(greedy(engine, f"waiting/{version}"))
        await engine.update_weights(version, weights)
        carried = await running
        found["rounds"].append(
            {"asleep": asleep, "awake": used(), "tokens": await waiting, "versions": carried.versions}
        )
    await engine.close()
    print(json.dumps(found))

asyncio.run(main())
"""


def engine_of(folder: Path, **environ: str) -> dict[str, Any]:
    """What an engine measures that sleeps and wakes twice."""
    command = [sys.executable, "-c", ENGINE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=400)
    print(done.stderr[-6000:])
    assert done.returncode == 0
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.timeout(420)
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"], ids=["plain", "expandable-segments"])
def test_memory_comes_back_and_the_tokens_stay(conf: str, qwen3: Path) -> None:
    """0.6B with a cache of 8 GiB, by the driver's count; CUDA graphs stay valid, and requests go on over the sleep."""
    result = engine_of(qwen3, PYTORCH_ALLOC_CONF=conf)
    for index, item in enumerate(result["rounds"]):
        print(
            f"awake {result['awake'] / GIB:.2f} GiB, asleep {item['asleep'] / GIB:.2f}, awake {item['awake'] / GIB:.2f}"
        )
        assert result["awake"] - item["asleep"] > 8.5 * GIB, "the cache, and 1.1 GiB of weights but for rounding"
        assert abs(item["awake"] - result["awake"]) < 0.5 * GIB
        assert [tokens for tokens, _ in item["tokens"]] == [tokens for tokens, _ in result["before"]]
        assert [version for version, _ in item["versions"]] == [index, index + 1]


@pytest.mark.timeout(420)
@pytest.mark.parametrize("store", ["cuda_ipc", "shared_memory"])
@pytest.mark.parametrize("worker", [False, True], ids=["in-process", "worker-process"])
def test_a_run_whose_engine_sleeps(store: str, worker: bool, qwen3: Path, tmp_path: Path) -> None:
    """The trainer has expandable segments; the weights are pulled into memory that the engine has just got back."""
    options = ["--model", str(qwen3), "--env", "math", "--steps", "3", "--env.max_turn_tokens", "64", "--tasks", "64"]
    options += ["--dataset.held_out", "16", "--training.learning_rate", "1e-6", "--launcher.share_gpus", "yes"]
    options += ["--services.generator.sleep", "yes", "--weights.store", store]
    output = run(tmp_path / "run", *options, f"--services.generator.worker_process={worker}")
    assert "and sleeps while the trainer steps, as --services.generator.sleep says" in output
    check(tmp_path / "run", steps=3)


@pytest.mark.timeout(420)
@pytest.mark.skipif(not OBSERVED, reason="nothing here measures GPUs")
def test_a_run_stays_below_its_cap(qwen3: Path, tmp_path: Path) -> None:
    """0.6B beside its trainer on 24 GiB: the engine sleeps by itself, and the driver never counts more."""
    options = ["--model", str(qwen3), "--env", "math", "--steps", "3", "--env.max_turn_tokens", "64", "--tasks", "64"]
    options += ["--dataset.held_out", "16", "--training.learning_rate", "1e-6", "--launcher.share_gpus", "yes"]
    options += ["--metrics.system_seconds", "0.2"]
    free, total = torch.cuda.mem_get_info(0)  # the tests before this one may hold some
    output = run(tmp_path / "run", *options, "--launcher.gpu_memory_gib", "24")
    assert "sleeps while the trainer steps" in output
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    used = max(line.get("gpu/0/memory_used_bytes", 0.0) for line in lines) - (total - free)
    print(f"at most {used / GIB:.1f} GiB of 24")
    assert used < 24 * GIB
    check(tmp_path / "run", steps=3)


def test_the_plan_asks_the_driver_what_a_card_has() -> None:
    options = ["--launcher.share_gpus", "yes"]
    card = make_plan(read_config(Config, options), GRPO).card
    assert card is not None and abs(card - torch.cuda.get_device_properties(0).total_memory) < 0.02 * card
    with pytest.raises(UserError, match="--launcher.gpu_memory_gib is 1000, and GPU 0 has"):
        make_plan(read_config(Config, [*options, "--launcher.gpu_memory_gib", "1000"]), GRPO)


def test_torch_keeps_the_trainer_to_its_cap(tiny_model: Path) -> None:
    program = (
        "import sys, torch\n"
        "from trainers.titan.trainer import TitanSettings, TitanTrainer\n"
        "from forge_env.runtime.weights.one_host.cuda_ipc import _plain_memory\n"
        "trainer = TitanTrainer(sys.argv[1], TitanSettings(gpu_memory_gib=2.0))\n"
        "with _plain_memory():\n    pass\n"  # a publish writes the allocator's settings anew
        "try:\n    torch.empty(3 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n    print('refused')\n"
    )
    for conf in ("", "expandable_segments:True"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tiny_model)],
            cwd=ROOT,
            env={**os.environ, "PYTORCH_ALLOC_CONF": conf},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.splitlines()[-1:] == ["refused"], done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "option",
    ["quantization=fp8_per_tensor", "kv_cache_dtype=fp8", f"speculative_config={json.dumps(NGRAM)}"],
    ids=["quantization", "cache", "speculative"],
)
@pytest.mark.parametrize("sleep", ["yes", "no"])
def test_what_moves_the_logprobs_is_measured(option: str, sleep: str, qwen3: Path, tmp_path: Path) -> None:
    """Over several updates of the weights: were they not taken over, the difference would grow beyond any rounding."""
    options = ["--model", str(qwen3), "--env", "math", "--steps", "4", "--env.max_turn_tokens", "64", "--tasks", "64"]
    options += ["--dataset.held_out", "16", "--training.learning_rate", "1e-5", "--launcher.share_gpus", "yes"]
    output = run(tmp_path / "run", *options, "--services.generator.sleep", sleep, f"--generator.engine.{option}")
    assert "the engine's logprobs differ from the trainer's by more than rounding" in output
    name = option.split("=")[0]
    assert any("on-policy check" in line and name in line for line in output.splitlines())
    assert "as expected for" not in output
    print(option, check(tmp_path / "run", steps=4, difference=0.3))
