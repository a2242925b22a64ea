"""What the settings of an engine come to as arguments of vLLM."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from agents.generator import start
from agents.generator.settings import EngineSettings
from agents.generator.start import KERNEL_SETTINGS, engine_arguments, import_vllm

GRAPHS = "cudagraph_capture_sizes"


@pytest.mark.parametrize(
    ("settings", "on_gpu", "arguments"),
    [
        # As the plan counts: vLLM's own default for an `LLMEngine` is 2,048, whatever the GPU.
        (EngineSettings(), True, {"max_num_batched_tokens": 16384}),
        (EngineSettings(step_tokens=4096), True, {"max_num_batched_tokens": 4096}),
        (EngineSettings(), False, {"max_num_batched_tokens": None}),
        # Of a folder of Mistral's, vLLM would take the files that the trainer does not.
        (EngineSettings(), False, {"config_format": "hf", "load_format": "hf"}),
        # The prefix cache finds whole blocks: vLLM's own 128 tokens are more than a short prompt has.
        (EngineSettings(), False, {"block_size": 32}),
        (EngineSettings(), True, {"block_size": None}),  # what the attention kernel asks for
        # The experts stay as the trainer has them.
        (EngineSettings(), True, {"moe_backend": "triton"}),
        (EngineSettings(), False, {"moe_backend": "auto"}),
        # A cache of given size asks for little free memory.
        (EngineSettings(kv_cache_gib=2.0), True, {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 2**31}),
        (
            EngineSettings(kv_cache_gib=0.0, gpu_memory_gib=40.0),
            True,
            {"gpu_memory_utilization": 0.45, "kv_cache_memory_bytes": None},
        ),
        (EngineSettings(sleep=True), True, {"enable_sleep_mode": True}),
        (EngineSettings(sleep=True), False, {"enable_sleep_mode": False}),
        # Nothing is tuned for kernels that a dense model in bfloat16 has not; else it is vLLM's own choice.
        (EngineSettings(), True, {"enable_flashinfer_autotune": False}),
        (EngineSettings(engine_args={"quantization": "fp8"}), True, {"enable_flashinfer_autotune": None}),
    ],
)
def test_settings_come_to_arguments_of_vllm(settings: EngineSettings, on_gpu: bool, arguments: dict[str, Any]) -> None:
    made = engine_arguments(settings, on_gpu=on_gpu, gpu_bytes=80 * 2**30)
    assert {name: made[name] for name in arguments} == arguments


@pytest.mark.parametrize(
    "most, largest, count", [(1, 2, 2), (100, 192, 14), (256, 512, 18), (500, 768, 22), (512, 1024, 22)]
)
def test_few_sizes_have_graphs_and_the_largest_batch_is_one(most: int, largest: int, count: int) -> None:
    sizes = engine_arguments(EngineSettings(cuda_graphs=True, max_requests=most), on_gpu=True)[GRAPHS]
    assert most in sizes and sizes == sorted(sizes)
    assert (sizes[-1], len(sizes)) == (largest, count)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(cuda_graphs=False),
        EngineSettings(cuda_graphs=True, max_requests=1025),
        EngineSettings(cuda_graphs=True, engine_args={"max_cudagraph_capture_size": 8}),
        EngineSettings(cuda_graphs=True, engine_args={"compilation_config": {"max_cudagraph_capture_size": 8}}),
    ],
)
def test_the_sizes_of_graphs_are_vllms_where_others_are_asked_for(settings: EngineSettings, on_gpu: bool) -> None:
    assert engine_arguments(settings, on_gpu=on_gpu)[GRAPHS] is None


@pytest.mark.parametrize("own", [{}, {"max_autotune": True}, {"combo_kernels": False}])
def test_kernels_of_a_gpu_are_combined_without_a_measurement_and_a_cpu_combines_none(own: dict[str, Any]) -> None:
    """What the user says of the compilation stands beside it."""
    config = {"mode": 3, **({"inductor_compile_config": own} if own else {})}
    graphs = EngineSettings(cuda_graphs=True, engine_args={"compilation_config": config})
    there = engine_arguments(graphs, on_gpu=True)
    assert there["compilation_config"] == {
        "mode": 3,
        "inductor_compile_config": {"combo_kernels": True, "benchmark_combo_kernel": False, **own},
    }
    assert there[GRAPHS]
    for settings, on_gpu in ((graphs, False), (replace(graphs, cuda_graphs=False), True)):
        assert engine_arguments(settings, on_gpu=on_gpu)["compilation_config"] == config


KERNEL_KEYS = {"block_m", "block_n", "block_k", "num_warps", "num_ctas", "num_stages", "max_nreg"}


@pytest.mark.parametrize("end, more", [("SHRINK", ("split_k", "group_size_m")), ("EXPAND_TRUE", ())])
def test_kernel_settings_are_there_for_each_number_of_matrices_that_vllm_fuses(end: str, more: tuple[str, ...]) -> None:
    """vLLM takes the nearest of all numbers but this one, and fails where it is missing."""
    files = list(KERNEL_SETTINGS.glob(f"*_{end}.json"))
    assert files
    for file in files:
        for by_slices in json.loads(file.read_text()).values():
            assert set(by_slices) == {"1", "2", "3"}, file
            settings: list[Any] = list(by_slices.values())
            for _ in ("tokens", "inputs", "outputs"):
                settings = [value for table in settings for value in table.values()]
            assert all(set(setting) == KERNEL_KEYS | set(more) for setting in settings), file


@pytest.mark.parametrize(
    "rank, given, expected", [(0, None, None), (16, None, str(KERNEL_SETTINGS)), (16, "/mine", "/mine")], ids=str
)
def test_an_engine_with_adapters_takes_the_kernel_settings_of_the_package_unless_others_are_given(
    monkeypatch: pytest.MonkeyPatch, rank: int, given: str | None, expected: str | None
) -> None:
    environ = {"VLLM_TUNED_CONFIG_FOLDER": given} if given else {}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(start.importlib, "import_module", lambda name: None)
    import_vllm(EngineSettings(lora_rank=rank))
    assert environ.get("VLLM_TUNED_CONFIG_FOLDER") == expected
