"""What the settings of an engine come to as arguments of vLLM."""

from __future__ import annotations

from agents.generator.start import EngineSettings, engine_arguments
from agents.generator.vllm_source import ENGINE_ARGS, field_types


def test_a_step_on_a_gpu_takes_as_many_tokens_as_the_plan_counts() -> None:
    """vLLM's own default for an `LLMEngine` is 2,048, whatever the GPU."""
    assert engine_arguments(EngineSettings(), on_gpu=True)["max_num_batched_tokens"] == 16384
    assert engine_arguments(EngineSettings(step_tokens=4096), on_gpu=True)["max_num_batched_tokens"] == 4096
    assert engine_arguments(EngineSettings(), on_gpu=False)["max_num_batched_tokens"] is None


def test_a_block_of_the_cache_on_a_cpu_is_shorter_than_most_prompts() -> None:
    """The prefix cache finds whole blocks: vLLM's own 128 tokens are more than a short prompt has."""
    assert engine_arguments(EngineSettings(), on_gpu=False)["block_size"] == 32
    assert engine_arguments(EngineSettings(), on_gpu=True)["block_size"] is None, "what the attention kernel asks for"


def test_a_cache_of_given_size_asks_for_little_free_memory() -> None:
    shared = engine_arguments(EngineSettings(kv_cache_gib=2.0), on_gpu=True)
    assert (shared["gpu_memory_utilization"], shared["kv_cache_memory_bytes"]) == (0.05, 2 * 2**30)
    capped = engine_arguments(EngineSettings(kv_cache_gib=0.0, gpu_memory_gib=40.0), on_gpu=True, gpu_bytes=80 * 2**30)
    assert (capped["gpu_memory_utilization"], capped["kv_cache_memory_bytes"]) == (0.45, None)


def test_only_an_engine_on_a_gpu_sleeps_in_vllm() -> None:
    settings = EngineSettings(sleep=True)
    assert engine_arguments(settings, on_gpu=True)["enable_sleep_mode"]
    assert not engine_arguments(settings, on_gpu=False)["enable_sleep_mode"]


def test_the_installed_vllm_knows_every_argument() -> None:
    assert not engine_arguments(EngineSettings(), on_gpu=True).keys() - field_types(*ENGINE_ARGS).keys()
