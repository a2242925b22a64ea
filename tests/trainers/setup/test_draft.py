"""What follows from the settings of a run alone: derived once for each draft, and anew for other settings."""

from __future__ import annotations

from dataclasses import replace

from forge_env.utils.settings import with_values
from trainers.grpo import GRPO, Config
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

ARGUMENTS = ["--model=Qwen/Qwen3-0.6B", "--lora.rank=4", "--launcher.gpus_per_host=4", "--generator.with_gpus"]


def test_another_config_gives_another_draft() -> None:
    draft = make_plan(read_config(Config, ARGUMENTS), GRPO)
    assert draft.lora is not None and draft.lora is draft.lora and draft.trainer.lora is draft.lora
    changes = {"lora.rank": 0, "services.generator.num_replicas": 2, "training.sync_interval": 3, "env.max_turns": 5}
    other = replace(draft, config=with_values(draft.config, changes))
    assert (draft.placement.gpus_needed, other.placement.gpus_needed) == (1, 2)
    assert (other.lora, other.staleness, other.limits.max_turns) == (None, 2, 5)
    assert (draft.lora.rank, draft.staleness, draft.limits.max_turns) == (4, 0, 8)
    assert other.training is other.config.training and draft.training is draft.config.training
