"""Settings of vLLM that pass through: their names and types are the installed vLLM's, and some are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from agents.generator.engine_args import QUANTIZATIONS, REFUSED, approximations, read_engine_args
from agents.generator.vllm_source import ENGINE_ARGS, bounds, choices, field_types
from forge_env.core.errors import UserError


def test_texts_become_what_vllm_takes() -> None:
    texts = {
        "block_size": "32",
        "watermark": "0.1",
        "enable_prefix_caching": "false",
        "async_scheduling": "None",
        "cudagraph_capture_sizes": "[1, 2, 4]",
        "kv_cache_dtype": "fp8",
        "gdn_prefill_backend": "triton",
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
    }
    assert read_engine_args(texts) == {
        "block_size": 32,
        "watermark": 0.1,
        "enable_prefix_caching": False,
        "async_scheduling": None,
        "cudagraph_capture_sizes": [1, 2, 4],
        "kv_cache_dtype": "fp8",
        "gdn_prefill_backend": "triton",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }


def test_entries_of_a_dictionary_are_given_one_by_one_or_in_yaml() -> None:
    whole = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert read_engine_args(whole) == whole
    parts = {"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": "3"}
    assert read_engine_args(parts) == whole


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"block_siz": 32}, "the installed vLLM has no such setting; did you mean block_size?"),
        ({"qqq": 32}, "its names are those of vllm.EngineArgs"),
        ({"block_size": "many"}, "block_size is 'many'; it must be a whole number"),
        ({"block_size": True}, "block_size is True; it must be a whole number"),
        ({"enable_prefix_caching": 3}, "enable_prefix_caching is 3; it must be true or false"),
        ({"gdn_prefill_backend": "mine"}, "it must be 'flashinfer' or 'triton'"),
        ({"speculative_config": "ngram"}, "it must be a dictionary or list, in JSON"),
        ({"speculative_config": []}, "it must be a dictionary, in JSON"),
        ({"dtype": "float16"}, "dtype is refused: it is bfloat16 on a GPU"),
        ({"gpu_memory_utilization": 0.5}, "it is --services.generator.gpu_memory_utilization"),
        ({"data_parallel_size": 2}, "several engines are --services.generator.num_replicas"),
        ({"tokenizer_mode": "slow"}, "the engine gets token ids"),
        ({"logprobs_mode": "raw_logprobs"}, "the trainer needs the logprobs at the sampling temperature"),
        ({"logits_processors": ["a:b"]}, "they change the distribution of the tokens"),
        ({"skip_tokenizer_init": False}, "text must not come between them"),
        ({"trust_remote_code": True}, "it runs code that comes with a model"),
        ({"load_format": "pt"}, "weights are read from safetensors"),
        ({"quantization": "awq"}, f"take one that vLLM makes of them at every load, {', '.join(QUANTIZATIONS)}"),
        ({"kv_cache_dtype": "nvfp4"}, "take one of auto, bfloat16, fp8"),
        ({"speculative_config": {"rejection_sample_method": "synthetic"}}, "take standard or block"),
        ({"speculative_config": {"method": "custom_class"}}, "runs a class of somebody else"),
        (
            {"speculative_config": {"method": "magic"}},
            "speculative_config.method is 'magic'; it must be one of ngram, ",
        ),
        ({"speculative_config": {"num_speculative_token": 1}}, "did you mean num_speculative_tokens?"),
        ({"speculative_config.num_speculative_tokens": "-2"}, "num_speculative_tokens is -2; it must be above 0"),
        ({"block_size": "0"}, "block_size is 0; it must be above 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens is -1; it must be at least 1"),
        ({"watermark": "1"}, "watermark is 1.0; it must be at least 0 and below 1"),
        ({"watermark": "nan"}, "watermark is 'nan'; it must be a number"),
        ({"attention_backend": "fast"}, "attention_backend is 'fast'; it must be 'auto' or 'FLASH_ATTN'"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy is 'lifo'; it must be 'fcfs' or 'priority'"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_engine_args(given)
    assert words in str(caught.value) and str(caught.value).startswith("--services.generator.engine")


def test_what_vllm_says_of_its_settings_is_read_from_its_source() -> None:
    from vllm.config.speculative import SpeculativeMethod
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    def texts(literal: Any) -> set[str]:
        return {text for each in get_args(literal) for text in ({each} if isinstance(each, str) else texts(each))}

    assert set(choices()["SpeculativeMethod"]) == texts(SpeculativeMethod)
    assert set(choices()["AttentionBackendEnum"]) == {"auto", *AttentionBackendEnum.__members__}
    assert bounds()["watermark"] == {"at least": 0.0, "below": 1.0}
    assert read_engine_args({"attention_backend": "flash_attn"}) == {"attention_backend": "flash_attn"}


def test_every_name_that_is_refused_is_one_of_vllm() -> None:
    assert set(REFUSED) - set(field_types(*ENGINE_ARGS)) == {"sleep_mode_backend"}, "which is of its ModelConfig"


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
def test_what_moves_the_logprobs_is_known(args: dict[str, Any], found: list[str]) -> None:
    assert approximations(args) == found


def test_vllm_is_not_imported_for_it() -> None:
    program = "import sys; from agents.generator.engine_args import read_engine_args as read; read({'block_size': 16})"
    subprocess.run(
        [sys.executable, "-c", f"{program}; assert not {{'vllm', 'torch'}} & sys.modules.keys()"], check=True
    )
