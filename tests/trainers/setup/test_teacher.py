"""The plan of a run with a teacher: where it runs, what it holds, and which teachers are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from tests.helpers.model_folders import change_json, make_model_folder
from tests.helpers.plans import lines_of, plan_of, refusal
from trainers.families.table import known_shapes
from trainers.setup.memory import frozen_memory
from trainers.setup.plan import with_folders


def test_it_has_processes_and_memory_of_its_own_model() -> None:
    options = ["--model=Qwen/Qwen3-0.6B", "--distill.teacher=Qwen/Qwen3-8B", "--teacher.procs=2"]
    plan = plan_of(*options)
    memory = next(memory for process, memory in plan.processes if process.service == "teacher")
    assert memory == frozen_memory(plan, plan.config.services.teacher, known_shapes()["Qwen/Qwen3-8B"])
    assert memory.always["weights"] == 4 * known_shapes()["Qwen/Qwen3-8B"].parameters / 2
    assert plan.deadlines == plan.config.deadlines.of(known_shapes()["Qwen/Qwen3-8B"].parameters)


def test_several_teachers_have_processes_and_memory_each_and_the_policy_itself_has_none() -> None:
    both = ["--env=math", "--env=code_exec", "--model=Qwen/Qwen3-0.6B", "--teacher.num_replicas=2"]
    names = {"math": "Qwen/Qwen3-8B", "code_exec": "Qwen/Qwen3-0.6B"}
    plan = plan_of(*both, *(f"--mixture.{label}.distill.teacher={name}" for label, name in names.items()))
    memory = {p.replica: found.always["weights"] for p, found in plan.processes if p.service == "teacher" and found}
    sizes = [4.0 * known_shapes()[name].parameters for name in names.values()]
    assert memory == {0: sizes[0], 1: sizes[0], 2: sizes[1], 3: sizes[1]}
    assert {what: (name, model.path) for what, (name, model) in plan.frozen_models.items()} == {
        "reference": ("ref_model", "Qwen/Qwen3-0.6B"),
        "teacher": ("teacher", "Qwen/Qwen3-8B"),
        "teacher-2": ("teacher", "Qwen/Qwen3-0.6B"),
    }
    one = plan_of(*both, f"--distill.teacher={names['math']}", "--mixture.code_exec.distill.teacher=")
    assert list(one.teachers) == ["Qwen/Qwen3-8B"] and len(one.placement.replicas["teacher"]) == 2
    shared = plan_of(*both, f"--distill.teacher={names['math']}", "--distill.only")
    assert list(shared.teachers) == ["Qwen/Qwen3-8B"]
    own = plan_of(*both, "--mixture.math.distill.teacher=self")
    assert not own.placement.replicas["teacher"] and own.objective is not None
    assert own.objective.distillation is not None
    [said] = lines_of(own, "teacher")
    assert said.startswith("math: the policy itself, with a hint in its prompt; code_exec: none; the reverse KL")


@pytest.mark.parametrize("name", ["grpo", "dapo", "reinforce"])
def test_a_teacher_alone_needs_no_siblings_and_drops_no_group(name: str) -> None:
    options = f"--distill.teacher=Qwen/Qwen3-8B --distill.only --{name}.n_samples=1 --env.min_valid=1"
    plan = plan_of(options, algorithm=name)
    assert plan.objective is not None and plan.objective.distillation is not None
    assert (plan.objective.needs_signal, plan.objective.needs_siblings) == (False, False)


def test_a_teacher_that_cannot_judge_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """Those in folders before the plan is made; those that a start finds, before any process is started."""
    run = ["--env=code_exec", "--warmup.steps=0"]
    wide = make_model_folder(tmp_path / "wide", tiny_model, hidden_size=96)
    plan = plan_of(*run, f"--model={tiny_model}", f"--distill.teacher={wide}")
    [shape] = [teacher.shape for teacher in plan.teachers.values()]
    assert shape is not None and shape.hidden_size == 96
    assert with_folders(plan, tiny_model, {str(wide): wide}) == plan

    other = shutil.copytree(wide, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[5:7]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    sentence = f"--distill.teacher is {other}, which has another vocabulary than the model {tiny_model}: only one of "
    assert refusal(*run, f"--model={tiny_model}", f"--distill.teacher={other}").startswith(sentence)
    made_here = plan_of(*run[:1], f"--distill.teacher={other}")
    with pytest.raises(UserError, match="another vocabulary"):
        with_folders(made_here, tiny_model, {str(other): other})

    short = shutil.copytree(wide, tmp_path / "short")
    change_json(short / "config.json", max_position_embeddings=64)
    assert refusal(*run, f"--model={tiny_model}", f"--distill.teacher={short}", "--env.max_tokens=128") == (
        f"--distill.teacher is {short}, which reads 64 tokens at most, and --env.max_tokens is 128: set it to that or "
        "less, or take another teacher"
    )
    (short / "config.json").unlink()
    assert refusal(*run, f"--model={tiny_model}", f"--distill.teacher={short}") == (
        f"{short} holds no config.json: --distill.teacher wants a Hugging Face folder, a training run or a hub id"
    )
