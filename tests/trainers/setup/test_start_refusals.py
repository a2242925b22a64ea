"""Every refusal of a start is one of the plan, too, or has a reason why a plan cannot know it.

The first test finds them all in the source: a new one has to be put into a check of the plan, or into the table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
STARTS = ("trainers/run", "trainers/titan", "trainers/sft", "trainers/controller", "agents/generator")
"""What a run executes after its plan is made."""
IN_PLAN = "the plan calls it"
OF_LIBRARY = "a caller in Python meets it, and no run does"
OF_EPISODES = "it needs an episode"
OF_DISK = "the disk is full, or somebody changes a file meanwhile"
OF_WEIGHTS = "a plan does not read all weights"
OF_EVAL = "a check of forge-env eval or serve, before an engine starts"
KNOWN = {
    "trainers/run/training_run.py:_checked": OF_LIBRARY,
    "trainers/run/warmup.py:demonstrate": OF_EPISODES,
    "trainers/run/warmup.py:within_limits": OF_EPISODES,
    "trainers/run/open_run.py:_with_remedies": OF_DISK,
    "trainers/titan/weight_files.py:__init__": OF_DISK,
    "trainers/titan/weight_files.py:_opened": OF_DISK,
    "trainers/titan/settings.py:check": IN_PLAN,
    "trainers/titan/settings.py:check_packages": IN_PLAN,
    "trainers/titan/settings.py:check_procs": IN_PLAN,
    "trainers/titan/settings.py:check_shape": IN_PLAN,
    "trainers/titan/settings.py:choose_attention": IN_PLAN,
    "trainers/titan/settings.py:check_state": IN_PLAN,
    "trainers/titan/settings.py:check_model": IN_PLAN,
    "trainers/titan/settings.py:__post_init__": "run_checks.check_schedule says it first",
    "trainers/run/trainer_actor.py:_take": OF_LIBRARY,
    "trainers/controller/ready_groups.py:unpack": OF_DISK,
    "trainers/controller/drop_counts.py:judge": OF_EPISODES,
    "trainers/controller/schedule.py:__init__": OF_LIBRARY,
    "trainers/sft/config.py:_check_data": IN_PLAN,
    "trainers/sft/config.py:_refuse_settings_of_data": IN_PLAN,
    "trainers/sft/config.py:resolved": IN_PLAN,
    "trainers/sft/shapes.py:find_shape": IN_PLAN,
    "trainers/sft/source.py:__init__": IN_PLAN,
    "trainers/sft/train.py:held_out_loss": OF_WEIGHTS,
    "trainers/titan/checkpoint.py:_check_finite": OF_WEIGHTS,
    "trainers/titan/checkpoint.py:load_weights": OF_DISK,
    "trainers/titan/weight_files.py:read": OF_WEIGHTS,
    "trainers/sft/data.py:_row_limit": "model_checks.check_length says it first",
    "trainers/sft/data.py:check": IN_PLAN,
    "trainers/sft/data.py:make_model": "the plan calls check, which says it first",
    "trainers/sft/data.py:prepare": "the plan calls check, which says it first",
    "trainers/titan/checkpoint.py:_explained": OF_DISK,
    "trainers/titan/checkpoint.py:load": "resume_checks.checkpoint_of says it first",
    "trainers/titan/head.py:check_temperature": IN_PLAN,
    "trainers/titan/rank_batches.py:check_rows": OF_LIBRARY,
    "trainers/titan/trainer.py:_adapters": OF_LIBRARY,
    "agents/generator/adapter_folder.py:_check_matrix": OF_EVAL,
    "agents/generator/adapter_folder.py:_of_layer": OF_EVAL,
    "agents/generator/adapter_folder.py:_scale": OF_EVAL,
    "agents/generator/adapter_folder.py:open_adapter": OF_EVAL,
    "agents/generator/adapter_folder.py:read_config": IN_PLAN,
    "agents/generator/engine_args.py:read_engine_args": IN_PLAN,
    "agents/generator/expert_weights.py:check_complete": OF_LIBRARY,
    "agents/generator/local.py:open_vllm": OF_EVAL,
    "agents/generator/policy.py:pull": OF_LIBRARY,
}


def refusals() -> Iterator[str]:
    """File and function of every `raise UserError`."""
    for folder in STARTS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _refuses(function):
                    yield f"{path.relative_to(REPOSITORY)}:{function.name}"


def _refuses(function: ast.AST) -> bool:
    raised = (node.exc for node in ast.walk(function) if isinstance(node, ast.Raise))
    return any(isinstance(error, ast.Call) and ast.unparse(error.func) == "UserError" for error in raised)


def test_every_refusal_of_a_start_is_known() -> None:
    assert sorted(set(refusals())) == sorted(KNOWN)
