"""What follows from the settings of a run alone: derived once for each plan, and anew for other settings."""

from __future__ import annotations

from dataclasses import replace

from forge_env.utils.settings import with_values
from trainers.grpo import GRPO, Config
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

ARGUMENTS = ["--model=Qwen/Qwen3-0.6B", "--lora.rank=4", "--launcher.gpus_per_host=4", "--generator.with_gpus"]


def test_another_config_gives_other_facts() -> None:
    plan = make_plan(read_config(Config, ARGUMENTS), GRPO)
    assert plan.lora is not None and plan.lora is plan.lora and plan.trainer.lora is plan.lora
    changes = {"lora.rank": 0, "services.generator.num_replicas": 2, "training.sync_interval": 3, "env.max_turns": 5}
    other = replace(plan, config=with_values(plan.config, changes))
    assert (plan.placement.gpus_needed, other.placement.gpus_needed) == (1, 2)
    assert (other.lora, other.config.training.most_behind, plan.lora.rank) == (None, 2, 4)
