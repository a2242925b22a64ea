"""What is refused before anything starts, each with one sentence that says how to go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.settings import leaves
from trainers import dapo, reinforce, sapo, sft
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO, Config
from trainers.model.shape import KNOWN_SHAPES
from trainers.setup.checks.machine_checks import check_attention, check_host_memory, host_memory
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


def refusal(*arguments: str, algorithm: Algorithm = GRPO) -> str:
    with pytest.raises(UserError) as caught:
        make_plan(read_config(algorithm.config, list(arguments)), algorithm).check()
    return str(caught.value)


MOE = ("--model.size", "tiny-moe")
GIVEN_MOE = "--model=Qwen/Qwen3-30B-A3B"
GPUS = ("--trainer.with_gpus", "--generator.with_gpus")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--parallelism.tensor_parallel_degree", "2", "--parallelism.data_parallel_shard_degree", "2",
             "--trainer.procs", "2"),
            "parallelism needs 4 trainer processes, services.trainer.procs is 2: --trainer.procs 4",
        ),
        (
            ("--parallelism.tensor_parallel_degree", "2"),
            "parallelism needs 2 trainer processes, services.trainer.procs is 1: --trainer.procs 2",
        ),
        (
            ("--parallelism.tensor_parallel_degree", "2", "--trainer.procs", "3"),
            "parallelism needs 4 trainer processes, services.trainer.procs is 3: --trainer.procs 4",
        ),
        (
            ("--parallelism.data_parallel_shard_degree", "1", "--trainer.procs", "4"),
            "parallelism needs 1 trainer process, services.trainer.procs is 4: --trainer.procs 1",
        ),
        (
            ("--parallelism.context_parallel_degree", "4", "--parallelism.tensor_parallel_degree", "2",
             "--trainer.procs", "4"),
            "parallelism needs 8 trainer processes, services.trainer.procs is 4: --trainer.procs 8",
        ),
        (
            ("--parallelism.context_parallel_degree", "4", "--trainer.procs", "4", "--env.max_tokens", "6"),
            "--parallelism.context_parallel_degree is 4, which cuts rows into parts of at least 2 tokens, and "
            "--env.max_tokens, the longest row, is 6: set the degree to 3 or less",
        ),
        (
            ("--training.seq_len", "2048"),
            "--training.seq_len is 2048, and the model made on the spot reads 1024 tokens at most: "
            "set it to that or less",
        ),
    ],
)  # fmt: skip
def test_the_sentence_says_what_to_do(arguments: tuple[str, ...], sentence: str) -> None:
    assert refusal(*arguments) == sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--parallelism.pipeline_parallel_degree", "2"), ["pipeline_parallel_degree is 2", "set it to 1"]),
        (("--parallelism.expert_parallel_degree", "2"), ["expert_parallel_degree is 2", "dense"]),
        (
            (*MOE, "--parallelism.expert_parallel_degree=3", "--trainer.procs=3"),
            ["expert_parallel_degree is 3", "does not divide the model's experts, 8", "choose 1"],
        ),
        (
            (*MOE, "--parallelism.expert_parallel_degree=4", "--trainer.procs=6"),
            [
                "expert_parallel_degree is 4",
                "does not divide the number of trainer processes",
                "6: choose 1, 2, 3 or 6",
            ],
        ),
        (
            (*MOE, "--parallelism.expert_parallel_degree=2", "--trainer.procs=2", "--training.fp32_head"),
            ["expert_parallel_degree is 2", "--training.fp32_head true", "leave one of them out"],
        ),
        (
            (GIVEN_MOE, "--lora.rank=8"),
            ["--lora.targets is all-linear", "experts", "set it to q_proj,k_proj,v_proj,o_proj"],
        ),
        (
            (GIVEN_MOE, "--lora.rank=8", "--lora.targets=q_proj", "--lora.publish=adapter"),
            ["--lora.publish is adapter", "the model has experts", "set it to merged"],
        ),
        ((*MOE, "--moe.compare_interval=-1"), ["--moe.compare_interval is -1", "at least 0"]),
        (
            (*MOE, "--generator.engine.quantization=fp8_per_tensor"),
            ["quantization is fp8_per_tensor", "the model has experts", "leave it out"],
        ),
        (
            (GIVEN_MOE, "--lora.rank=8", "--lora.targets=q_proj,up_proj"),
            ["--lora.targets is q_proj,up_proj", "experts"],
        ),
        (("--lora.rank=8",), ["--lora.rank is 8", "there is no --model", "random weights", "set --lora.rank to 0"]),
        (("--steps", "0"), ["--training.steps is 0", "at least 1"]),
        (("--parallelism.data_parallel_replicate_degree", "2"), ["needs 2 trainer processes", "--trainer.procs 2"]),
        (
            (
                "--parallelism.data_parallel_replicate_degree=2",
                "--trainer.procs=4",
                "--parallelism.data_parallel_shard_degree=4",
            ),
            ["needs 8 trainer processes, services.trainer.procs is 4"],
        ),
        (
            ("--training.cpu_offload",),
            ["cpu_offload is true", "on the CPU", "leave it out", "--trainer.with_gpus true"],
        ),
        (("--training.offload_sums",), ["offload_sums is true", "leave it out", "--training.cpu_offload true"]),
        (("--checkpoint.step=5",), ["--checkpoint.step is 5", "needs --resume"]),
        (("--grpo.n_samples=2", "--env.min_valid=3"), ["min_valid is 3", "--grpo.n_samples, 2", "set it to 2 or less"]),
        (("--env.max_thinking_tokens=8",), ["max_thinking_tokens is 8", "thinking is off", "on or template"]),
        (
            ("--generator.kv_cache_gib=0.0001",),
            ["kv_cache_gib is 0.0001", "one request of --env.max_tokens, 512, takes"],
        ),
        (
            ("--generator.engine.max_num_batched_tokens=500",),
            ["max_num_batched_tokens is 500", "--env.max_tokens, 512, at least"],
        ),
        (("--launcher.kind=workers", "--launcher.workers=a,a"), ["names a:22222 twice"]),
        (("--launcher.kind=workers", "--launcher.workers=a:99999"), ["'a:99999'", "from 1 to 65535"]),
        (("--training.optimizer_state=bfloat16",), ["for a trainer on GPU", "float32 or 8bit"]),
        (
            ("--training.optimizer_state=bfloat16", "--trainer.with_gpus", "--training.cpu_offload"),
            ["cpu_offload is true", "runs on the CPU", "float32 or 8bit"],
        ),
        (("--training.attention=flash",), ["attention is 'flash'", 'one of: "", varlen, flex, sdpa']),
        (("--training.attention=flex",), ["attention is flex", "this one is on the CPU", "set it to sdpa"]),
        (
            ("--training.attention=varlen", *GPUS, "--parallelism.context_parallel_degree=2", "--trainer.procs=2"),
            ["attention is varlen", "context_parallel_degree is 2", "set it to flex"],
        ),
        (
            ("--training.attention=varlen", *GPUS, "--training.dtype=float32"),
            ["attention is varlen", "dtype is float32", "set --training.attention to flex"],
        ),
        (
            ("--training.attention=sdpa", *GPUS, "--training.packing"),
            ["attention is sdpa", "packing is true", "mask of tokens x tokens", "set it to flex"],
        ),
        (
            ("--training.attention=sdpa", *GPUS, "--parallelism.context_parallel_degree=2", "--trainer.procs=2"),
            ["attention is sdpa", "context_parallel_degree is 2", "mask of tokens x tokens"],
        ),
        (("--parallelism.data_parallel_shard_degree", "0"), ["shard_degree is 0", "-1"]),
        (
            ("--trainer.num_replicas", "2"),
            ["services.trainer.num_replicas is 2", "there is one trainer", "set it to 1"],
        ),
        (("--services.envs.ping_seconds", "0"), ["services.envs.ping_seconds is 0", "above 0"]),
        (("--generator.procs", "2"), ["services.generator.procs is 2", "--generator.with_gpus true"]),
        (("--ref_model.with_gpus",), ["services.ref_model.procs is 0", "--ref_model.procs 1"]),
        (
            ("--training.deterministic", "--training.staleness", "1"),
            ["needs --training.staleness 0, and it is 1", "must not depend on the clock"],
        ),
        (
            ("--training.deterministic", "--services.envs.num_replicas", "2"),
            ["needs one replica", "services.envs.num_replicas is 2", "set it to 1"],
        ),
        (
            ("--training.deterministic", "--generator.with_gpus"),
            ["is for CPU", "services.generator.with_gpus is true", "do not repeat bit by bit"],
        ),
        (
            ("--training.sync_interval", "4", "--training.staleness", "0"),
            ["sync_interval is 4", "staleness is 0", "leave it out", "--training.staleness 3"],
        ),
        (
            ("--training.deterministic", "--training.sync_interval", "4"),
            ["needs --training.sync_interval 1 or --training.old_logprobs trainer", "it is 4"],
        ),
        (
            (
                "--training.deterministic",
                "--training.sync_interval",
                "4",
                "--training.old_logprobs",
                "trainer",
                "--training.staleness",
                "4",
            ),
            ["needs --training.staleness 3, and it is 4"],
        ),
        (("--weights.store", "cuda_ipc", "--trainer.with_gpus"), ["--weights.store is cuda_ipc", "shared_memory"]),
        (("--weights.store", "nccl"), ["--weights.store is nccl", "with_gpus", "take shared_memory"]),
        (("--resume",), ["--resume needs --output"]),
        (
            ("--launcher.share_gpus=yes", "--launcher.kind=processes", "--launcher.hosts=2"),
            ["share_gpus is yes", "one machine", "2 hosts"],
        ),
        (
            ("--training.lr_schedule", "cosine", "--training.warmup_steps", "5", "--steps", "5"),
            ["lr_schedule is cosine", "warmup_steps, 5", "none of the 5 steps"],
        ),
        (
            ("--env.thinking", "on", "--env.max_turn_tokens", "64", "--env.max_thinking_tokens", "64"),
            ["max_thinking_tokens is 64", "max_turn_tokens, 64, at most", "raise --env.max_turn_tokens"],
        ),
        (("--env.thinking", "maybe"), ["thinking", "maybe", "off", "on", "template"]),
        (("--model", "/no/such"), ["no model folder /no/such"]),
        (("--model", "a/b/c"), ["no model folder a/b/c"]),
        (("--dataset.streaming",), ["--dataset.path is empty"]),
        (("--env", "external"), ["external needs the option command"]),
        (("--env", "external", "--command", "true"), ["has no expert", "there is no --model", "--warmup.steps 0"]),
        (
            ("--env", "external", "--command", "true", "--model", "who/knows", "--warmup.steps", "5"),
            ["has no expert", "--warmup.steps is 5"],
        ),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[str, ...], words: list[str]) -> None:
    found = refusal(*arguments)
    assert [word for word in words if word not in found] == []


def test_offloaded_weights_need_the_memory_of_the_host() -> None:
    arguments = ["--model=Qwen/Qwen3-8B", *GPUS, "--launcher.gpus_per_host=2", "--weights.store=cuda_ipc"]
    plan = make_plan(read_config(Config, [*arguments, "--training.cpu_offload"]), GRPO)
    with pytest.raises(
        UserError, match=r"has 130\.0 GiB .* is 144\.\d: offloaded weights.* 144\.\d; leave --tr.* 8bit$"
    ):
        check_host_memory(plan.config, plan.processes, 130 * 2**30)
    for fine in (150 * 2**30, 0):  # 0 is a host that is not known
        check_host_memory(plan.config, plan.processes, fine)
    small = make_plan(
        read_config(Config, [*arguments, "--training.cpu_offload", "--training.optimizer_state=8bit"]), GRPO
    )
    check_host_memory(small.config, small.processes, 130 * 2**30)
    here = make_plan(read_config(Config, arguments), GRPO)
    check_host_memory(here.config, here.processes, 1)


def test_a_sleeping_engine_of_adapters_keeps_its_weights_in_the_memory_of_the_host() -> None:
    """21.4 GiB were measured for an 8B model: each matrix of pinned memory takes a power of two bytes."""
    arguments = ["--model=Qwen/Qwen3-8B", *GPUS, "--launcher.gpus_per_host=1", "--launcher.gpu_memory_gib=80"]
    arguments += ["--lora.rank=16", "--weights.store=cuda_ipc", "--generator.sleep=yes"]
    plan = make_plan(read_config(Config, arguments), GRPO)
    with pytest.raises(UserError, match=r"is 20\.9: a copy of the sleeping engine's weights 20\.9;.*publish merged$"):
        check_host_memory(plan.config, plan.processes, 16 * 2**30)
    check_host_memory(plan.config, plan.processes, 24 * 2**30)
    merged = make_plan(read_config(Config, [*arguments, "--lora.publish=merged"]), GRPO)
    check_host_memory(merged.config, merged.processes, 1)


def test_processes_on_the_cpu_need_the_memory_of_the_host() -> None:
    plan = make_plan(read_config(Config, ["--model=Qwen/Qwen3-8B"]), GRPO)
    with pytest.raises(UserError) as caught:
        check_host_memory(plan.config, plan.processes, 23 * 2**30)
    found = str(caught.value)
    assert found.startswith("this machine has 23.0 GiB of memory, and the estimate of what the run needs there is ")
    parts = {service: found.index(f"{service} ") for service in ("trainer", "store", "generator")}
    assert sorted(parts, key=parts.__getitem__) == ["trainer", "store", "generator"], "the largest first"
    assert "--lora.rank 16, or put trainer and generator on GPUs" in found
    check_host_memory(plan.config, plan.processes, 400 * 2**30)
    assert host_memory(make_plan(read_config(Config, []), GRPO).placement) > 0
    on_gpus = [*GPUS, f"--launcher.gpus_per_host={gpus_available() + 2}", "--launcher.share_gpus=no"]
    assert host_memory(make_plan(read_config(Config, [*on_gpus, "--trainer.procs=64"]), GRPO).placement) == 0.0


def test_pinned_memory_comes_in_powers_of_two() -> None:
    """Each matrix of a rank by itself: 96 MiB of an MLP's take 128, and 1,187 of an embedding's 2,048."""
    shape = KNOWN_SHAPES["Qwen/Qwen3-8B"]
    of_layer, embeddings = 64 + 32 + 3 * 128, 2 * 2048
    pinned = 2 * 2 * (36 * of_layer + embeddings) * 2**20
    moments = 8 * shape.parameters
    assert host_bytes(shape, ranks=2) == pinned + moments > 1.15 * state_bytes(shape)


def test_a_new_run_wants_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    for taken in (tmp_path, tmp_path / "metrics.jsonl"):
        assert refusal(f"--output={taken}").startswith(f"--output {taken} exists and is not empty")
    make_plan(read_config(Config, [f"--output={tmp_path / 'new'}"]), GRPO).check()


def test_what_works_is_let_through() -> None:
    for arguments in (
        ["--trainer.procs", "4"],
        ["--trainer.procs", "4", "--parallelism.tensor_parallel_degree", "2"],
        ["--training.sync_interval", "4", "--training.staleness", "3"],
        ["--training.sync_interval", "4"],
        ["--training.deterministic", "--training.sync_interval", "4", "--training.old_logprobs", "trainer"],
        ["--ref_model.procs", "1", "--grpo.beta", "0.1"],
        ["--training.seq_len", "1024"],
    ):
        make_plan(read_config(Config, arguments), GRPO).check()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--training.attention=sdpa",),
        ("--training.attention=sdpa", "--training.packing"),
        ("--training.attention=",),
        ("--training.attention=varlen", *GPUS, "--training.packing"),
        ("--training.attention=flex", *GPUS, "--parallelism.context_parallel_degree=2", "--trainer.procs=2"),
        ("--training.attention=flex", *GPUS, "--training.dtype=float32"),
        ("--training.attention=sdpa", *GPUS),
    ],
)
def test_attention_that_the_trainer_can_use_is_let_through(arguments: tuple[str, ...]) -> None:
    check_attention(read_config(Config, arguments))


def test_tensor_parallel_divides_the_heads(tmp_path: Path) -> None:
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
    make_plan(
        read_config(Config, [*model, "--trainer.procs", "6", "--parallelism.tensor_parallel_degree", "3"]), GRPO
    ).check()


def test_a_model_folder_that_lacks_something(tmp_path: Path) -> None:
    model_folder(tmp_path, hidden_size=0)
    assert "hidden_size = 0" in refusal("--model", str(tmp_path))
    (tmp_path / "config.json").write_text("[")
    assert "not valid JSON" in refusal("--model", str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal("--model", str(tmp_path))


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


TEMPLATES = {"LlamaForCausalLM": "<|start_header_id|> ipython", "Qwen3ForCausalLM": "<think> enable_thinking"}


@pytest.mark.parametrize(("thinking", "refused"), [("off", False), ("on", True), ("template", False)])
def test_a_family_without_thinking_is_refused_before_anything_starts(
    tmp_path: Path, thinking: str, refused: bool
) -> None:
    for family, template in TEMPLATES.items():
        folder = tmp_path / family
        folder.mkdir()
        model_folder(folder, architectures=[family], model_type="llama" if "Llama" in family else "qwen3")
        (folder / "chat_template.jinja").write_text(template)
        plan = make_plan(read_config(Config, ["--model", str(folder), "--env.thinking", thinking]), GRPO)
        found = [problem for problem in plan.problems if "thinking" in problem]
        assert len(found) == (refused and family == "LlamaForCausalLM")
        assert all("LlamaForCausalLM has no thinking" in problem and "set it to off" in problem for problem in found)


def test_thinking_of_a_model_that_is_not_here() -> None:
    words = ["--env.thinking is on", "meta-llama/Llama-3.1-8B has none"]
    found = refusal("--model", "meta-llama/Llama-3.1-8B", "--env.thinking", "on")
    assert [word for word in words if word not in found] == []
    for model, thinking in (("meta-llama/Llama-3.1-8B", "template"), ("Qwen/Qwen3-8B", "on"), ("who/knows", "on")):
        plan = make_plan(read_config(Config, ["--model", model, "--env.thinking", thinking]), GRPO)
        assert not any("thinking" in problem for problem in plan.problems)


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


@pytest.mark.parametrize(
    ("algorithm", "options", "sentence"),
    [
        (
            sft.SFT,
            "--sft.data=chats.jsonl --evaluation.sets.other.split=test",
            "--evaluation.sets.other needs an environment: name it with --env",
        ),
        (
            sft.SFT,
            "--sft.data=chats.jsonl --dataset.path=/no/tasks.jsonl",
            "--dataset.path is '/no/tasks.jsonl', and there is no environment: supervised training has --sft.data",
        ),
        (
            sft.SFT,
            "--sft.data=who/knows --sft.streaming",
            "with --sft.streaming the length of the data is not known: say with --steps when to end",
        ),
        (
            GRPO,
            "--model=Qwen/Qwen3-0.6B --lora.rank=4 --lora.targets=",
            "--lora.targets is empty, so that nothing would be trained: set it to all-linear, or to names",
        ),
        (
            GRPO,
            "--evaluation.sets.hard.tasks=0",
            "--evaluation.sets.hard.tasks is '0'; it must be a whole number, at least 1",
        ),
        (
            GRPO,
            "--grpo.kl_straight_through --grpo.kl_in=reward --grpo.beta=0.1",
            "--grpo.kl_straight_through has no meaning with --grpo.kl_in reward, through which no gradient goes: leave "
            "it out, or use --grpo.kl_in loss",
        ),
        (GRPO, "--training.staleness=-2", "--training.staleness is -2; it must be at least 0, or -1 for the default"),
        (GRPO, "--env.max_tokens=1", "--env.max_tokens is 1; it must be at least 2, or -1 for the default"),
        (GRPO, "--env.step_seconds=0", "--env.step_seconds is 0.0; it must be above 0, or -1 for the default"),
        (
            GRPO,
            "--warmup.learning_rate=2",
            "--warmup.learning_rate is 2.0; it must be from 0 to 1, or -1 for the default",
        ),
        (
            GRPO,
            "--parallelism.data_parallel_shard_degree=0",
            "--parallelism.data_parallel_shard_degree is 0; it must be at least 1, or -1 for all processes that the "
            "other degrees leave",
        ),
        (GRPO, "--generator.procs=0", "--services.generator.procs is 0; it must be from 1 to 4096"),
        (GRPO, "--ref_model.procs=-1", "--services.ref_model.procs is -1; it must be from 0 to 4096"),
        (
            GRPO,
            "--training.learning_rate=1.5",
            "--training.learning_rate is 1.5; it must be from 0 to 1, or -1 for the default",
        ),
        (GRPO, "--services.trainer.ping_seconds=0", "--services.trainer.ping_seconds is 0.0; it must be above 0"),
        (sft.SFT, "--training.steps=0", "--training.steps is 0; it must be at least 1, or -1 for the default"),
        (sft.SFT, "--sft.held_out_share=1", "--sft.held_out_share is 1.0; it must be at least 0 and below 1"),
        (GRPO, "--grpo.n_samples=0", "--grpo.n_samples is 0; it must be at least 1"),
        (GRPO, "--grpo.temperature=0", "--grpo.temperature is 0.0; it must be at least 0.01"),
        (GRPO, "--grpo.clip_low=1.5", "--grpo.clip_low is 1.5; it must be from 0 to 1"),
        (GRPO, "--grpo.clip_high=-1", "--grpo.clip_high is -1.0; it must be at least 0"),
        (GRPO, "--grpo.correction_high=0.5", "--grpo.correction_high is 0.5; it must be at least 1"),
        (GRPO, "--grpo.std_ddof=2", "--grpo.std_ddof is 2; it must be from 0 to 1"),
        (
            GRPO,
            "--generator.gpu_memory_utilization=2",
            "--services.generator.gpu_memory_utilization is 2.0; it must be above 0 and at most 1",
        ),
        (dapo.DAPO, "--dapo.signal_error=-1", "--dapo.signal_error is -1; it must be at least 0"),
        (dapo.DAPO, "--dapo.overlong_buffer=2", "--dapo.overlong_buffer is 2.0; it must be from 0 to 1"),
        (sapo.SAPO, "--sapo.tau_neg=0", "--sapo.tau_neg is 0.0; it must be above 0"),
        (reinforce.REINFORCE, "--reinforce.clip_ratio=-1", "--reinforce.clip_ratio is -1.0; it must be at least 0"),
        (sft.SFT, "--warmup.batch_size=0", "--warmup.batch_size is 0; it must be at least 1"),
    ],
)
def test_a_refusal_is_one_sentence(algorithm: Algorithm, options: str, sentence: str) -> None:
    assert refusal(*options.split(), algorithm=algorithm) == sentence
