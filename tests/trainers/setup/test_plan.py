"""The plan of a run: where each process lives, what the settings come to, and what is missing, with nothing started."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from tests.helpers.entry import never
from tests.helpers.hub import read_later
from trainers import gspo, sft
from trainers.algorithm import Algorithm
from trainers.api import enter
from trainers.grpo import GRPO, Config
from trainers.objective.plugins import load_loss
from trainers.setup.describe import describe_plan, describe_services, describe_settings, dry_run
from trainers.setup.options.read_config import read_config
from trainers.setup.placement import Process, gpus_available
from trainers.setup.plan import make_plan, ready
from trainers.setup.run_plan import RunPlan
from trainers.titan.settings import TitanSettings

GUIDE = str(Path(__file__).parent / "data" / "torchforge_guide.yaml")


def plan_of(*arguments: str, algorithm: Algorithm = GRPO) -> RunPlan:
    return make_plan(read_config(algorithm.config, list(arguments)), algorithm)


def processes(config: Config) -> Sequence[Process]:
    return make_plan(config, GRPO).placement.processes


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int, algorithm: Algorithm = GRPO) -> str:
    """What a dry run prints, with every run of spaces as one."""
    assert enter(algorithm, never, ["--dry-run", *arguments]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err and (err.startswith("error: ") if code else not err)
    return " ".join(out.split()) + " " + err


# ---- placement ----


def test_every_process_of_the_defaults() -> None:
    results = {process.service: process.where for process in processes(Config())}
    assert results == {
        "controller": "CPU",
        "store": "CPU",
        "envs": "CPU, 1 thread",
        "generator": "CPU, 1 thread",
        "trainer": "CPU, 2 threads",
    }


def test_gpus_are_handed_out_in_order_and_ranks_have_coordinates() -> None:
    arguments = ["--generator.procs=2", "--generator.with_gpus", "--trainer.procs=4", "--trainer.with_gpus"]
    arguments += ["--ref_model.procs=1", "--ref_model.with_gpus", "--grpo.beta=0.1"]
    config = read_config(Config, [*arguments, "--parallelism.tensor_parallel_degree=2"])
    placed = [
        (process.service, process.rank, process.gpu, process.part)
        for process in processes(config)
        if process.gpu is not None
    ]
    assert placed == [
        ("generator", 0, 0, "engine, TP 0"),
        ("generator", 1, 1, "engine, TP 1"),
        ("trainer", 0, 2, "FSDP 0, TP 0"),
        ("trainer", 1, 3, "FSDP 0, TP 1"),
        ("trainer", 2, 4, "FSDP 1, TP 0"),
        ("trainer", 3, 5, "FSDP 1, TP 1"),
        ("ref_model", 0, 6, "frozen reference"),
    ]


def test_copies_of_the_weights_follow_one_another() -> None:
    arguments = ["--trainer.procs=4", "--parallelism.data_parallel_replicate_degree=2", "--ref_model.procs=2"]
    parts = [
        (process.service, process.part) for process in processes(read_config(Config, [*arguments, "--grpo.beta=0.1"]))
    ]
    assert [part for service, part in parts if service == "trainer"] == [
        "copy 0, FSDP 0, TP 0",
        "copy 0, FSDP 1, TP 0",
        "copy 1, FSDP 0, TP 0",
        "copy 1, FSDP 1, TP 0",
    ]
    assert [part for service, part in parts if service == "ref_model"] == [
        "frozen reference, FSDP 0",
        "frozen reference, FSDP 1",
    ]


def test_the_plan_says_the_float32_parts() -> None:
    arguments = ["--launcher.gpus_per_host=2", "--trainer.with_gpus", "--training.fp32_head"]
    lines = dict(describe_plan(plan_of(*arguments)))
    assert lines["precision"] == "trainer bfloat16 over float32 weights, output layer in float32, engine float32"
    assert "output layer" not in dict(describe_plan(plan_of(arguments[-1])))["precision"]  # on the CPU all is float32


def test_the_reference_model_computes_as_the_trainer_does() -> None:
    arguments = ["--training.dtype=bfloat16", "--training.packing", "--training.fp32_head", "--ref_model.threads=3"]
    plan = plan_of(*arguments, "--training.max_tokens_per_micro_batch=512")
    computes = {"dtype": "bfloat16", "fp32_head": True, "max_tokens_per_micro_batch": 512, "pack_length": 512}
    assert plan.frozen(plan.config.services.ref_model) == TitanSettings(**computes, threads=3)
    assert {name: getattr(plan.trainer, name) for name in computes} == computes


def test_ranks_that_share_rows_are_neighbours() -> None:
    config = read_config(Config, ["--trainer.procs=4", "--parallelism.context_parallel_degree=2"])
    parts = [process.part for process in processes(config) if process.service == "trainer"]
    assert parts == ["FSDP 0, CP 0, TP 0", "FSDP 1, CP 1, TP 0", "FSDP 2, CP 0, TP 0", "FSDP 3, CP 1, TP 0"]


def test_shared_gpus_are_handed_out_once_to_each() -> None:
    arguments = ["--trainer.procs=2", "--trainer.with_gpus", "--generator.with_gpus", "--generator.num_replicas=2"]
    shared = plan_of(*arguments, "--launcher.share_gpus=yes").placement
    placed = [(p.service, p.replica, p.rank, p.gpu) for p in shared.processes if p.gpu is not None]
    assert placed == [("generator", 0, 0, 0), ("generator", 1, 0, 1), ("trainer", 0, 0, 0), ("trainer", 0, 1, 1)]
    assert shared.gpus_needed == 2
    assert plan_of(*arguments, "--launcher.share_gpus=no").placement.gpus_needed == 4


@pytest.mark.parametrize(("procs", "replicas", "gpus"), [(1, 3, [0, 1, 0]), (2, 2, [0, 1, 0, 1]), (1, 2, [0, 1])])
def test_engines_that_find_no_gpu_of_their_own_share_one(procs: int, replicas: int, gpus: list[int]) -> None:
    arguments = ["--trainer.with_gpus", "--generator.with_gpus", "--launcher.gpus_per_host=2"]
    arguments += [f"--generator.procs={procs}", f"--generator.num_replicas={replicas}"]
    shared = plan_of(*arguments, "--launcher.share_gpus=yes").placement
    assert [process.gpu for process in shared.processes if process.service == "generator"] == gpus
    assert [process.gpu for process in shared.processes if process.service == "trainer"] == [0]
    assert shared.gpus_needed == 2
    assert plan_of(*arguments, "--launcher.share_gpus=no").placement.gpus_needed == procs * replicas + 1


def test_engines_on_one_gpu_have_equal_parts_of_its_memory() -> None:
    arguments = ["--model=Qwen/Qwen3-8B", "--training.cpu_offload", "--training.max_tokens_per_micro_batch=4096"]
    arguments += ["--trainer.with_gpus", "--generator.with_gpus", "--launcher.gpus_per_host=1"]
    arguments += ["--launcher.gpu_memory_gib=140", "--launcher.share_gpus=yes"]
    one, two = (plan_of(*arguments, f"--generator.num_replicas={replicas}") for replicas in (1, 2))
    engines = [memory.total for process, memory in two.processes if memory and process.service == "generator"]
    assert len(engines) == 2 and engines[0] == engines[1] < 0.6 * one.cards[0].phases["rollouts"]["generator"]
    assert two.cards[0].phases["rollouts"]["generator"] == sum(engines)
    assert [plan.cards[0].worst for plan in (one, two)] == pytest.approx([0.9 * 140 * 2**30] * 2)
    assert two.about_engine.startswith("each of the 2 engines on a GPU has a cache of ")


def test_weights_are_published_in_the_dtype_of_the_engine() -> None:
    on_gpus = plan_of("--model=Qwen/Qwen3-8B", "--trainer.with_gpus", "--generator.with_gpus", "--trainer.procs=2")
    assert on_gpus.model.shape is not None and on_gpus.engine.dtype == "bfloat16"
    assert on_gpus.store_reason.startswith("through GPU memory (CUDA IPC)")
    size, trainers = 2 * on_gpus.model.shape.parameters, []
    for process, memory in on_gpus.processes:
        if process.service == "trainer" and memory is not None:
            trainers.append(memory.always.get("versions", 0))
            # The embedding, whole and in its two parts.
            assert memory.phases[1] == {"published": 2 * 2.0 * 151936 * 4096}
    assert trainers == [size, 0]
    on_cpu = plan_of("--model=Qwen/Qwen3-0.6B")
    (store,) = [memory for process, memory in on_cpu.processes if process.service == "store" and memory]
    assert on_cpu.model.shape is not None and store.total == 2 * 4 * on_cpu.model.shape.parameters


@pytest.mark.parametrize(("available", "shared"), [(1, True), (2, False), (3, False)])
def test_gpus_are_shared_if_there_are_too_few(available: int, shared: bool) -> None:
    arguments = ["--trainer.with_gpus", "--generator.with_gpus", f"--launcher.gpus_per_host={available}"]
    assert plan_of(*arguments).placement.shares_gpus is shared


def test_memory_of_several_processes_on_one_gpu_is_added_up() -> None:
    arguments = ["--trainer.with_gpus", "--generator.with_gpus"]
    plan = plan_of(*arguments, "--launcher.gpus_per_host=1")
    parts = [memory.total for process, memory in plan.processes if memory and process.gpu is not None]
    assert len(parts) == 2 and all(parts)
    assert [card.worst for card in plan.cards] == [sum(parts)]
    apart = plan_of(*arguments, "--launcher.gpus_per_host=2").cards
    assert [(card.where, list(card.phases["all"])) for card in apart] == [
        ("GPU 0", ["generator"]),
        ("GPU 1", ["trainer"]),
    ]


def test_a_reference_model_is_started_only_if_something_asks_for_it() -> None:
    def services(*arguments: str) -> set[str]:
        return {process.service for process in processes(read_config(Config, ["--ref_model.procs=1", *arguments]))}

    assert "ref_model" not in services()
    assert "ref_model" in services("--grpo.beta=0.1")
    assert "ref_model" in services("--loss", "trainers.losses:SimpleGRPOLoss")
    assert "ref_model" not in services("--grpo.beta=0.1", "--loss", "trainers.losses:SFTLoss")


# ---- what the settings come to ----


def test_counts_of_a_step_and_of_the_run() -> None:
    lines = dict(describe_plan(plan_of("--config", GUIDE, "--steps", "10", "--trainer.procs", "4")))
    assert lines["optimizer step"] == "16 groups of 8 episodes, at most 262,144 tokens"
    assert lines["run"] == "10 optimizer steps: 160 groups, 1,280 episodes"
    assert "1,720,574,976 parameters" in lines["model"] or "sizes are not known" in lines["model"]
    assert lines["environment"] == "math, at most 4,096 of the split train of openai/gsm8k, at most 256 held out"
    assert lines["staleness"] == "at most 0 steps between sampling a group and training on it"
    assert lines["KL reference"] == "a frozen model on GPU"


def test_the_kl_reference() -> None:
    assert dict(describe_plan(plan_of()))["KL reference"] == "none: nothing asks for it"
    assert "the generator's own logprobs" in dict(describe_plan(plan_of("--grpo.beta=0.1")))["KL reference"]
    on_cpu = plan_of("--grpo.beta=0.1", "--ref_model.procs=1", "--ref_model.with_gpus=false")
    assert dict(describe_plan(on_cpu))["KL reference"] == "a frozen model on CPU"


def test_supervised_training_has_a_plan_too() -> None:
    plan = plan_of(algorithm=sft.SFT)
    assert plan.problems == []
    lines = dict(describe_plan(plan))
    assert lines["run"] == "150 optimizer steps" and not {"KL reference", "importance ratio", "staleness"} & set(lines)


def test_a_plan_without_an_environment_has_the_trainer_alone() -> None:
    gpus = ("--trainer.with_gpus", "--generator.with_gpus", "--launcher.gpus_per_host=2")
    placement = plan_of("--sft.data=somebody/chats", *gpus, algorithm=sft.SFT).placement
    assert [(each.service, each.gpu) for each in placement.processes] == [("controller", None), ("trainer", 0)]
    assert placement.gpus_needed == 1
    plan = plan_of("--sft.data=somebody/chats", algorithm=sft.SFT)
    lines = dict(describe_plan(plan))
    assert lines["run"] == "as many steps as the epochs of the data have"
    assert lines["precision"] == "trainer float32 over float32 weights" and not {"environment", "engine"} & set(lines)
    assert describe_services(plan) == "services are up: trainer on CPU"


def test_every_setting_is_listed_with_its_default() -> None:
    settings = describe_settings(plan_of("--steps", "7"))
    assert [row for row in settings if row[0]] == [("*", "training.steps", "7", "120")]
    assert ("", "grpo.n_samples", "8") in settings and ("", "training.learning_rate", "0.0006") in settings
    assert len(settings) > 80


# ---- memory ----


def test_memory_of_the_defaults_is_small_and_of_every_process_known() -> None:
    memory = {process.service: result for process, result in plan_of().processes}
    assert all(result is not None and result.total < 2 * 2**30 for result in memory.values())
    assert memory["trainer"].always["state"] == 16 * 557_824  # type: ignore[union-attr]


def test_an_unknown_model_has_no_estimate_and_the_plan_says_so() -> None:
    plan = plan_of("--model", "nobody/No-Such-Model")
    assert {process.service: result for process, result in plan.processes}["trainer"] is None
    assert any("No-Such-Model" in text for text in plan.missing) and any("sizes" in text for text in plan.missing)
    assert plan.problems == []  # a start would download it


# ---- plugins ----

COUNTED_LOSS = """
from pathlib import Path

class Counted:
    def __init__(self):
        with Path(__file__).with_name("made").open("a") as file:
            file.write("loss\\n")

    def __call__(self, logprobs, ref_logprobs, old_logprobs, advantages, padding_mask):
        return logprobs.sum()

class Advantages:
    def __init__(self):
        with Path(__file__).with_name("made").open("a") as file:
            file.write("advantages\\n")

    def __call__(self, rewards):
        return list(rewards)
"""


def test_the_users_own_loss_and_advantages_are_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan, which a dry run prints and a run executes; all that is told of them asks the plan."""
    (tmp_path / "mine.py").write_text(COUNTED_LOSS)
    made, file = tmp_path / "made", tmp_path / "mine.py"
    options = ["--loss", f"{file}:Counted", "--advantages", f"{file}:Advantages", "--ref_model.procs=1"]
    options += ["--generator.with_gpus", "--launcher.gpus_per_host=8", "--training.old_logprobs=auto"]
    monkeypatch.chdir(tmp_path)
    enter(gspo.GSPO, never, ["--dry-run", *options])
    assert "against the trainer's logprobs" in " ".join(capsys.readouterr().out.split())
    assert sorted(made.read_text().split()) == ["advantages", "loss"]
    made.unlink()

    async def set_up(plan: RunPlan, _: object) -> None:
        assert plan.objective is not None
        describe_services(plan), describe_plan(plan), ready(plan)
        assert (plan.old_logprobs, plan.placement.has_reference) == ("generator", True)

    assert enter(gspo.GSPO, set_up, options[:5]) == 0
    assert sorted(made.read_text().split()) == ["advantages", "loss"]


def test_a_loss_that_comes_with_every_step_is_made_once_in_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COUNTED_LOSS)
    sent = pickle.dumps(load_loss(f"{tmp_path / 'mine.py'}:Counted"))
    assert pickle.loads(sent) is pickle.loads(sent)
    assert (tmp_path / "made").read_text().split() == ["loss", "loss"], "here, and once where it was received"


def test_a_model_of_the_hub_is_checked_when_its_config_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its weights are downloaded: what it cannot do is refused as with a folder."""
    config = {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 640, "max_position_embeddings": 256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = "--model=nobody/knows-this"
    for arguments, words in {
        (name, "--env.max_tokens=512"): "reads 256 tokens at most",
        (
            name, "--env.max_tokens=256", "--trainer.procs=2", "--parallelism.tensor_parallel_degree=2",
        ): "does not divide the model's num_key_value_heads, 3",
        (name, "--env.max_tokens=256", "--generator.kv_cache_gib=0.00001"): "one request of --env.max_tokens, 256",
    }.items():  # fmt: skip
        plan = plan_of(*arguments)
        assert plan.problems == [] and plan.model.shape is None
        with pytest.raises(UserError, match=re.escape(words)):
            read_later(plan, tmp_path, monkeypatch)


# ---- routing replay ----

MOE = "--model.size=tiny-moe"


@pytest.mark.parametrize(("arguments", "replays"), [([MOE], True), ([MOE, "--moe.replay=off"], False), ([], False)])
def test_a_model_with_experts_replays_routes_unless_it_is_told_not_to(arguments: list[str], replays: bool) -> None:
    plan = plan_of(*arguments)
    assert plan.replays_routes == replays and plan.trainer.replay == ("--moe.replay=off" not in arguments)
    assert ("routing replay" in dict(describe_plan(plan))) == replays
    assert plan.problems == []


def test_an_engine_that_cannot_return_routes_is_refused() -> None:
    arguments = ("--generator.with_gpus", "--generator.engine.enable_prefix_caching=false")
    with pytest.raises(UserError, match="enable_prefix_caching is false, and vLLM 0.32.* or set --moe.replay off"):
        plan_of(MOE, *arguments)
    for others in ([MOE, "--moe.replay=off"], []):
        plan_of(*others, *arguments)


def test_supervised_training_has_no_routes() -> None:
    plan = plan_of(MOE, algorithm=sft.SFT)
    assert not plan.replays_routes and "routing replay" not in dict(describe_plan(plan))


def test_the_first_step_and_each_after_an_interval_is_measured_without_replay() -> None:
    plan = plan_of(MOE, "--moe.compare_interval=3")
    assert [step for step in range(1, 9) if plan.compares_replay(step)] == [1, 4, 7]
    for arguments in ([MOE, "--moe.compare_interval=0"], [MOE, "--moe.replay=off"], []):
        assert not any(plan_of(*arguments).compares_replay(step) for step in range(1, 30))


def test_whether_routes_are_replayed_is_decided_when_the_model_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 640, "max_position_embeddings": 1024,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = "--model=nobody/knows-this"
    arguments = (name, "--generator.with_gpus", "--lora.rank=4", "--lora.targets=q_proj", "--launcher.gpus_per_host=2")
    plan = plan_of(*arguments)
    found = read_later(plan, tmp_path, monkeypatch)
    assert (plan.replays_routes, found.replays_routes) == (False, True)
    assert (plan.trainer.lora.publish, found.trainer.lora.publish) == ("adapter", "merged")
    assert found.engine.lora_rank == 0


# ---- mistakes ----


def test_the_first_mistake_is_what_a_start_says(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trainer.procs", "3", "--parallelism.tensor_parallel_degree", "2", "--env", "maths"]
    with pytest.raises(UserError, match="'maths'") as refused:
        plan_of(*arguments)
    assert enter(GRPO, never, arguments) == 2
    assert capsys.readouterr().err == f"error: {refused.value}\n"


@pytest.mark.parametrize("mistake", ["--grpo.n_samples=1", "--grpo.n_samples=0", "--loss=no_such:Loss", "--model=/no"])
def test_a_mistake_is_all_that_a_dry_run_says(capsys: pytest.CaptureFixture[str], mistake: str) -> None:
    text = printed(capsys, mistake, "--env=math", code=2)
    assert text.startswith(" error: ") and text.count("\n") == 1 and mistake.partition("=")[2] in text


def test_a_dry_run_for_a_larger_machine_prints_everything_and_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "--config", GUIDE, "--trainer.procs=64", "--parallelism.data_parallel_shard_degree=-1",
                   "--dataset.path=openai/gsm8k:main", code=2)  # fmt: skip
    sentence = f"the run needs 66 GPUs, {gpus_available()} are available: generator 1, trainer 64, ref_model 1; "
    assert f"no: {sentence}" in text and f"error: {sentence}" in text
    words = ["* training.learning_rate 1e-05 4e-06", "training.weight_decay 0", "trainer 1 GPU 2 FSDP 0, TP 1"]
    assert [
        word for word in [*words, "16 groups", "controller", "store", "envs", "generator"] if word not in text
    ] == []


def test_a_dry_run_of_the_defaults_succeeds_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = printed(capsys, code=0)
    assert "nothing was started" in text and "weights through " in " ".join(text.split())
    assert "Missing on this machine - nothing" in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_what_processes_on_gpus_keep_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model=Qwen/Qwen3-8B", "--trainer.with_gpus", "--generator.with_gpus", "--generator.sleep=yes"]
    arguments += ["--launcher.gpus_per_host=1", "--launcher.gpu_memory_gib=80", "--weights.store=cuda_ipc"]
    dry_run(plan_of(*arguments, "--lora.rank=16"))
    assert "memory of the host: 20.9 = a copy of the sleeping engine's weights 20.9" in capsys.readouterr().out
    dry_run(plan_of(*arguments))
    assert "memory of the host" not in capsys.readouterr().out


def test_what_a_dry_run_finds_wrong_beyond_the_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "tasks.jsonl")
    assert f"there is no file {missing}" in printed(capsys, "--dataset.path", missing, code=2)
    assert "are for policy gradients" in printed(capsys, "--loss", "a:b", code=2, algorithm=sft.SFT)


def test_fewer_gpus_than_needed_are_missing() -> None:
    plan = plan_of("--trainer.procs=64", "--trainer.with_gpus")
    available = gpus_available()
    (problem,) = plan.problems
    assert problem.startswith(f"the run needs 64 GPUs, {available} are available: trainer 64; ")
    assert f"{64 - available} of 64 GPUs" in plan.missing
