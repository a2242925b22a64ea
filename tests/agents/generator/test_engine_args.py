"""Settings of vLLM that pass through: which do, of what types, and what a user reads of a value that vLLM refuses."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.generator.engine_args import QUANTIZATIONS, SETTINGS, approximations, read_engine_args, refusal
from agents.generator.settings import EngineSettings
from agents.generator.start import engine_arguments, load_engine
from forge_env.core.errors import UserError


def test_texts_become_what_vllm_takes() -> None:
    texts = {
        "block_size": "32",
        "watermark": "0.1",
        "enable_prefix_caching": "false",
        "cudagraph_capture_sizes": "[1, 2, 4]",
        "kv_cache_dtype": "fp8",
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
    }
    assert read_engine_args(texts) == {
        "block_size": 32,
        "watermark": 0.1,
        "enable_prefix_caching": False,
        "cudagraph_capture_sizes": [1, 2, 4],
        "kv_cache_dtype": "fp8",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }


def test_entries_of_a_dictionary_may_be_texts() -> None:
    whole = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert read_engine_args(whole) == whole
    assert read_engine_args({"speculative_config": {"method": "ngram", "num_speculative_tokens": "3"}}) == whole


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"block_siz": 32}, "docs/gpu.md. Did you mean block_size? Available: async_scheduling, "),
        ({"trust_remote_code": True}, "is no setting of vLLM that passes through"),
        ({"block_size": "many"}, "block_size is 'many'; it must be a whole number"),
        ({"block_size": True}, "block_size is True; it must be a whole number"),
        ({"enable_prefix_caching": 3}, "enable_prefix_caching is 3; it must be true or false"),
        ({"speculative_config": "ngram"}, "speculative_config is 'ngram'; it must be a dictionary, in JSON"),
        ({"block_size": {"x": 1}}, "block_size is {'x': 1}; it must be a whole number"),
        ({"dtype": "float16"}, "it is bfloat16 on a GPU"),
        ({"gpu_memory_utilization": 0.5}, "it is --services.generator.gpu_memory_utilization"),
        (
            {"compilation_config": {"cudagraph_mode": "full"}},
            "cudagraph_mode is full, with which answers of vLLM 0.32 were",
        ),
        ({"compilation_config": {"cudagraph_mode": 2}}, "take FULL_AND_PIECEWISE, its default, or PIECEWISE"),
        ({"quantization": "awq"}, f"take one that vLLM makes of them at every load, {', '.join(QUANTIZATIONS)}"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_engine_args(given)
    assert words in str(caught.value) and str(caught.value).startswith("--services.generator.engine")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"block_size": 0}, "block_size is 0, which vLLM refuses: Input should be greater than 0"),
        ({"kv_cache_dtype": "fp9"}, "kv_cache_dtype is fp9, which vLLM refuses: Input should be 'auto', "),
        ({"attention_backend": "fast"}, "attention_backend is fast, which vLLM refuses: Unknown attention backend"),
        ({"watermark": 2.0, "block_size": 32}, "watermark is 2.0, which vLLM refuses: Input should be less than 1"),
        (
            {"speculative_config": {"method": "magic"}},
            "speculative_config is {'method': 'magic'}, which vLLM refuses: ",
        ),
        ({"compilation_config": {"mod": 1}}, "compilation_config is {'mod': 1}, which vLLM refuses: "),
    ],
)
def test_a_value_that_vllm_refuses_is_one_sentence(tiny_model: Path, args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_engine(str(tiny_model), EngineSettings(max_model_len=64, engine_args=read_engine_args(args)))
    assert str(caught.value).startswith(f"--services.generator.engine.{words}") and "\n" not in str(caught.value)


def test_another_error_of_vllm_is_no_mistake_in_the_settings() -> None:
    assert refusal(RuntimeError("no memory is left"), {"block_size": 32, "kv_cache_dtype": "fp8"}) is None


def test_the_installed_vllm_has_every_setting() -> None:
    from vllm import EngineArgs

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    assert not {*SETTINGS, *engine_arguments(EngineSettings(), on_gpu=True)} - known


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ({}, []),
        ({"block_size": 16, "kv_cache_dtype": "bfloat16"}, []),
        ({"quantization": "fp8_per_tensor"}, ["quantization=fp8_per_tensor"]),
        ({"kv_cache_dtype": "fp8_e5m2"}, ["kv_cache_dtype=fp8_e5m2"]),
        ({"speculative_config": {"method": "ngram"}}, ["speculative_config.method=ngram"]),
        ({"speculative_config": {"model": "draft"}}, ["speculative_config.model=draft"]),
    ],
)
def test_settings_that_move_the_logprobs_are_listed(args: dict[str, Any], found: list[str]) -> None:
    assert approximations(args) == found


def test_vllm_is_not_imported_for_it() -> None:
    program = "import sys; from agents.generator.engine_args import read_engine_args as read; read({'block_size': 16})"
    subprocess.run(
        [sys.executable, "-c", f"{program}; assert not {{'vllm', 'torch'}} & sys.modules.keys()"], check=True
    )
