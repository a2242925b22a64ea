"""What is refused before anything starts, each with one sentence that says how to go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.records.run_files import MANIFEST
from forge_env.utils.settings import leaves
from tests.helpers.model_folders import make_model_folder
from tests.helpers.plans import plan_of, refusal
from trainers.families.table import known_shapes
from trainers.grpo import GRPO, Config
from trainers.setup.checks.machine_checks import check_host_memory, host_memory
from trainers.setup.memory import host_bytes, state_bytes
from trainers.setup.options.read_config import read_config
from trainers.setup.placement import gpus_available
from trainers.setup.plan import make_plan

SIZES = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "vocab_size": 640,
    "max_position_embeddings": 4096,
}


def model_folder(folder: Path, **sizes: object) -> str:
    (folder / "config.json").write_text(json.dumps(SIZES | sizes))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


GPUS = ("--trainer.with_gpus", "--generator.with_gpus")


def test_offloaded_weights_need_the_memory_of_the_host() -> None:
    arguments = ["--model=Qwen/Qwen3-8B", *GPUS, "--launcher.gpus_per_host=2", "--weights.store=cuda_ipc"]
    plan = plan_of(*arguments, "--training.cpu_offload")
    with pytest.raises(
        UserError, match=r"has 130\.0 GiB .* is 144\.\d: offloaded weights.* 144\.\d; leave --tr.* 8bit$"
    ):
        check_host_memory(plan, 130 * 2**30)
    for fine in (150 * 2**30, 0):  # 0 is a host that is not known
        check_host_memory(plan, fine)
    small = make_plan(
        read_config(Config, [*arguments, "--training.cpu_offload", "--training.optimizer_state=8bit"]), GRPO
    )
    check_host_memory(small, 130 * 2**30)
    here = plan_of(*arguments)
    check_host_memory(here, 1)


def test_a_sleeping_engine_of_adapters_keeps_its_weights_in_the_memory_of_the_host() -> None:
    """21.4 GiB were measured for an 8B model: each matrix of pinned memory takes a power of two bytes."""
    arguments = ["--model=Qwen/Qwen3-8B", *GPUS, "--launcher.gpus_per_host=1", "--launcher.gpu_memory_gib=80"]
    arguments += ["--lora.rank=16", "--weights.store=cuda_ipc", "--generator.sleep=yes"]
    plan = plan_of(*arguments)
    with pytest.raises(UserError, match=r"is 20\.9: a copy of the sleeping engine's weights 20\.9;.*publish merged$"):
        check_host_memory(plan, 16 * 2**30)
    check_host_memory(plan, 24 * 2**30)
    merged = plan_of(*arguments, "--lora.publish=merged")
    check_host_memory(merged, 1)


def test_processes_on_the_cpu_need_the_memory_of_the_host() -> None:
    plan = plan_of("--model=Qwen/Qwen3-8B")
    with pytest.raises(UserError) as caught:
        check_host_memory(plan, 23 * 2**30)
    found = str(caught.value)
    assert found.startswith("this machine has 23.0 GiB of memory, and the estimate of what the run needs there is ")
    parts = {service: found.index(f"{service} ") for service in ("trainer", "store", "generator")}
    assert sorted(parts, key=parts.__getitem__) == ["trainer", "store", "generator"], "the largest first"
    assert "--lora.rank 16, or put trainer and generator on GPUs" in found
    check_host_memory(plan, 400 * 2**30)
    assert host_memory(plan_of().placement) > 0
    on_gpus = [*GPUS, f"--launcher.gpus_per_host={gpus_available() + 2}", "--launcher.share_gpus=no"]
    assert host_memory(plan_of(*on_gpus, "--trainer.procs=64").placement) == 0.0


def test_pinned_memory_comes_in_powers_of_two() -> None:
    """Each matrix of a rank by itself: 96 MiB of an MLP's take 128, and 1,187 of an embedding's 2,048."""
    shape = known_shapes()["Qwen/Qwen3-8B"]
    of_layer, embeddings = 64 + 32 + 3 * 128, 2 * 2048
    pinned = 2 * 2 * (36 * of_layer + embeddings) * 2**20
    moments = 8 * shape.parameters
    assert host_bytes(shape, ranks=2) == pinned + moments > 1.15 * state_bytes(shape)


def test_a_new_run_wants_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    for taken in (tmp_path, tmp_path / "metrics.jsonl"):
        assert refusal(f"--output={taken}").startswith(f"--output {taken} exists and is not empty")
    plan_of(f"--output={tmp_path / 'new'}").check()


def test_tensor_parallel_divides_the_heads(tmp_path: Path, tiny_model: Path) -> None:
    model = ("--model", model_folder(tmp_path))
    trainer = refusal(*model, "--trainer.procs", "4", "--parallelism.tensor_parallel_degree", "4")
    assert trainer == (
        "--parallelism.tensor_parallel_degree is 4, which does not divide the model's num_key_value_heads, 6: "
        "choose 1, 2, 3 or 6"
    )
    engine = refusal(*model, "--generator.procs", "5", "--generator.with_gpus")
    assert engine.startswith(
        "--services.generator.procs is 5, which does not divide the model's num_attention_heads, 12"
    )
    complete = make_model_folder(tmp_path / "complete", tiny_model, **SIZES)
    procs = ("--trainer.procs", "6", "--parallelism.tensor_parallel_degree", "3")
    plan_of("--model", str(complete), *procs).check()


def test_a_model_folder_that_lacks_something(tmp_path: Path) -> None:
    model_folder(tmp_path, hidden_size=0)
    assert "hidden_size = 0" in refusal("--model", str(tmp_path))
    (tmp_path / "config.json").write_text("[")
    assert "config.json cannot be read" in refusal("--model", str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal("--model", str(tmp_path))


def test_a_new_run_begins_with_weights_of_another(tmp_path: Path, tiny_model: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000040"
    shutil.copytree(tiny_model, checkpoint / "model")
    (checkpoint / MANIFEST).write_text("{}")
    for name in (f"{tmp_path}/run", f"{tmp_path}/run@last", f"{tmp_path}/run@40", str(checkpoint)):
        plan = plan_of("--model", name)
        assert plan.config.model.path == str(plan.model.folder) == str(checkpoint / "model")
    assert "run has no weights @20: it has the weights of the step 40" in refusal("--model", f"{tmp_path}/run@20")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": "one.safetensors", "b": "two.safetensors"}, "lacks one.safetensors and 1 more of the 2 files"),
        ({"a": "model.safetensors", "b": "two.safetensors"}, "lacks two.safetensors of the 2 files of its weights"),
        ({"a": "../model.safetensors"}, "which is not a file beside it"),
        (None, "is damaged: it has no weight_map"),
    ],
)
def test_weights_that_are_split_over_files_are_all_there(
    tmp_path: Path, files: dict[str, str] | None, words: str
) -> None:
    model = model_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files} if files else {}))
    assert words in refusal("--model", model)


@pytest.mark.parametrize("size", [{"max_position_embeddings": "many"}, {"head_dim": 0}, {"num_key_value_heads": -2}])
def test_sizes_that_a_model_may_leave_out_are_numbers(tmp_path: Path, size: dict[str, object]) -> None:
    ((name, value),) = size.items()
    assert f"says {name} = {value!r}" in refusal("--model", model_folder(tmp_path, **size))


def test_thinking_of_a_model_that_is_not_here() -> None:
    words = ["--env.thinking is on", "meta-llama/Llama-3.1-8B has none"]
    found = refusal("--model", "meta-llama/Llama-3.1-8B", "--env.thinking", "on")
    assert [word for word in words if word not in found] == []
    for model, thinking in (("meta-llama/Llama-3.1-8B", "template"), ("Qwen/Qwen3-8B", "on"), ("who/knows", "on")):
        plan_of("--model", model, "--env.thinking", thinking)


def test_gpus_are_counted_by_service() -> None:
    services = ("--generator.procs", "2", "--trainer.procs", "64", "--ref_model.procs", "1", "--ref_model.with_gpus")
    needed = f"the run needs {{}} GPUs, {gpus_available()} are available: generator 2, trainer 64{{}}"
    without, with_reference = refusal(*GPUS, *services), refusal(*GPUS, *services, "--grpo.beta", "0.1")
    assert without.startswith(needed.format(66, "; "))  # nothing asks for the reference model
    assert with_reference.startswith(needed.format(67, ", ref_model 1; "))
    assert "--SERVICE.with_gpus false" in without


# ---- numbers ----


def test_every_number_of_a_run_has_a_bound() -> None:
    without = {setting.name for setting in leaves(Config()) if setting.kind in (int, float) and not setting.marks}
    assert without == {"training.entropy_coef"}


def test_an_absurd_whole_number() -> None:
    for name in ("training.steps", "training.batch_size", "env.max_turns", "parallelism.tensor_parallel_degree"):
        assert refusal(f"--{name}={10**12}") == f"--{name} is {10**12}; it must be at most 2147483647"
