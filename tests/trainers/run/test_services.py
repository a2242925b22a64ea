"""What each service of a run is started with."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

pytest.importorskip("monarch")
pytest.importorskip("torchtitan")

from trainers.config import RunConfig
from trainers.run import start
from trainers.run.trainer_actor import allocator
from trainers.settings.services import EnvsConfig, ServiceConfig, ServicesConfig
from trainers.settings.tasks import EnvConfig
from trainers.setup.placement import make_placement
from trainers.setup.plan import make_plan
from trainers.sft import SFT
from trainers.titan.trainer import TitanSettings


def test_every_process_of_a_service_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = RunConfig(
        services=ServicesConfig(
            generator=ServiceConfig(procs=2, with_gpus=True, num_replicas=2),
            envs=EnvsConfig(num_replicas=1),
            trainer=ServiceConfig(procs=3, with_gpus=True),
        )
    )
    wanted, places = config.services, make_placement(config, has_reference=False).replicas
    generators = start._options(wanted.generator, places["generator"], 300.0).environ
    assert generators is not None
    seen = [generators(replica)["CUDA_VISIBLE_DEVICES"] for replica in (0, 1)]
    seen += [start._resources(wanted.trainer, places["trainer"][0])["CUDA_VISIBLE_DEVICES"]]
    seen += [start._resources(wanted.envs, places["envs"][0])["CUDA_VISIBLE_DEVICES"]]
    assert seen == ["0,1", "2,3", "4,5,6", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,7, 3")  # those of the run, which calls them 0 to 2
    assert generators(0)["CUDA_VISIBLE_DEVICES"] == "GPU-a,7"


def test_all_agents_think_as_the_config_says() -> None:
    for thinking in ("off", "on"):
        budget = 9 if thinking == "on" else 0
        config = RunConfig(env=EnvConfig(name="math", thinking=thinking, max_thinking_tokens=budget))
        plan = make_plan(config, SFT)
        agents = start._agents(plan, plan.share(""), "folder", cast(Any, None))
        assert set(agents) == {"policy", "evaluated", "greedy", "expert"}
        assert {settings["thinking"] for _, settings in agents.values()} == {thinking}
        assert config.env.limits().max_thinking_tokens == budget


def test_what_no_option_sets_is_the_trainers_own_default() -> None:
    plain = make_plan(RunConfig(), SFT).trainer
    recipe = {"betas", "threads", "max_tokens_per_micro_batch"}  # of the tiny recipe
    for field in dataclasses.fields(TitanSettings):
        assert field.name in recipe or getattr(plain, field.name) == field.default, field.name


def test_a_full_micro_batch_is_compiled_at_the_start_unless_the_engine_has_the_memory_then() -> None:
    plan = make_plan(RunConfig(), SFT)
    assert plan.trainer_at_start.compile_full
    plan = dataclasses.replace(plan, engine=dataclasses.replace(plan.engine, sleep=True))
    assert not plan.trainer_at_start.compile_full


def test_the_trainer_s_memory_grows_in_place_unless_the_user_has_set_the_allocator_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert allocator() == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert allocator() == {}
