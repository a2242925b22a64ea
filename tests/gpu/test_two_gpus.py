"""Whole runs on two GPUs: one each, weights and optimizer over both, matrices over both, an engine over both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.test_runs_gpu import check, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")]
FSDP = ("--trainer.procs", "2")
TP = (*FSDP, "--parallelism.tensor_parallel_degree", "2")
HSDP = (*FSDP, "--parallelism.data_parallel_replicate_degree", "2")
OFFLOAD = (*FSDP, "--training.cpu_offload", "--training.fp32_head", "--trainer.threads", "8")
HSDP_OFFLOAD = (*HSDP, *OFFLOAD[2:])
CP = (*FSDP, "--parallelism.context_parallel_degree", "2")
BFLOAT16 = ("--training.optimizer_state", "bfloat16", "--training.activation_checkpoint", "selective")
REFERENCE = ("--ref_model.procs", "2", "--grpo.beta", "0.01", "--training.packing")
ENGINE = ("--generator.procs", "2")
SHORT = ("--env", "math", "--steps", "4", "--warmup.steps", "40", "--generator.cuda_graphs=false")


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "options, store",
    [
        ((), "CUDA IPC"),
        (("--weights.store", "shared_memory"), "shared memory"),
        (FSDP, "CUDA IPC"),
        (TP, "CUDA IPC"),
        (HSDP, "CUDA IPC"),
        (OFFLOAD, "CUDA IPC"),
        (HSDP_OFFLOAD, "CUDA IPC"),
        ((*TP, *BFLOAT16), "CUDA IPC"),
        ((*CP, *BFLOAT16), "CUDA IPC"),
        ((*CP, *OFFLOAD[2:]), "CUDA IPC"),
        (REFERENCE, "CUDA IPC"),
        (ENGINE, "CUDA IPC"),
    ],
    ids=[
        *("one-each", "shared-memory", "fsdp", "tp", "hsdp", "offload", "hsdp-offload"),
        *("tp-bfloat16-state", "cp-bfloat16-state", "cp-offload", "reference", "engine-tp"),
    ],
)
def test_a_run_of_the_tiny_model(options: tuple[str, ...], store: str, tmp_path: Path) -> None:
    output = run(tmp_path / "run", *SHORT, *options)
    (line,) = [line for line in output.splitlines() if "weights: through" in line]
    assert store in line
    check(tmp_path / "run", steps=4)
