"""The engine's settings of a run: what a GPU's cache of keys and values comes to."""

from __future__ import annotations

from dataclasses import replace

from trainers.grpo import Config
from trainers.model.shape import find_shape
from trainers.setup.engine import engine_settings
from trainers.setup.placement import make_placement
from trainers.setup.read_config import read_config

GPU = ("--generator.with_gpus", "--trainer.with_gpus", "--launcher.gpus_per_host=1")


def settings(*arguments: str, layers: int = 2):  # type: ignore[no-untyped-def]
    shape = find_shape("").shape
    assert shape is not None
    config = read_config(Config, arguments)
    shares_gpus = make_placement(config, has_reference=False).shares_gpus
    return engine_settings(config, replace(shape, num_hidden_layers=layers), shares_gpus=shares_gpus)


def test_on_cpu_the_cache_has_one_size() -> None:
    assert settings().kv_cache_gib == settings(layers=1000).kv_cache_gib == 1.0
    assert settings().enforce_eager and settings().dtype == "float32"


def test_on_gpu_it_holds_what_is_in_flight_up_to_a_bound() -> None:
    few, more = settings(*GPU, layers=400), settings(*GPU, "--env.max_tokens", "1024", layers=400)
    # 256 episodes of 512 tokens, each with keys and values of 2 x 32 numbers of 2 bytes in 400 layers, and a tenth
    assert few.kv_cache_gib == 1.1 * 256 * 512 * 2 * 64 * 2 * 400 / 2**30
    assert more.kv_cache_gib == 2 * few.kv_cache_gib
    assert settings(*GPU, "--env.max_tokens", "1024", layers=10**6).kv_cache_gib == 32.0
    assert not few.enforce_eager and few.dtype == "bfloat16"


def test_a_size_that_is_given_counts() -> None:
    assert settings(*GPU, "--generator.kv_cache_gib", "3.5").kv_cache_gib == 3.5
    assert settings(*GPU, "--generator.cuda_graphs=false").enforce_eager


def test_a_process_of_the_worker_s_own_is_for_gpus() -> None:
    asked = "--generator.worker_process"
    assert settings(*GPU, asked).worker_process and not settings(*GPU).worker_process
    assert not settings(asked).has_worker_processes


def test_on_gpu_it_takes_as_many_requests_as_there_may_be_episodes_up_to_a_bound() -> None:
    assert settings().max_requests == settings("--training.batch_size", "64").max_requests == 128
    assert settings(*GPU).max_requests == 256  # an evaluation's
    assert settings(*GPU, "--training.batch_size", "40").max_requests == 384  # for 320 episodes
    assert settings(*GPU, "--training.batch_size", "400").max_requests == 512
