"""The plan of a run: its memory, what it makes once, what it refuses, and that nothing is started."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.settings import with_values
from tests.helpers.entry import never
from tests.helpers.hub import read_later
from tests.helpers.plans import lines_of, plan_of, refusal
from trainers import gspo, sft
from trainers.algorithm import Algorithm
from trainers.api import enter
from trainers.families.table import known_shapes
from trainers.grpo import GRPO, Config
from trainers.model.find import made_shape
from trainers.objective.plugins import load_loss
from trainers.setup.describe import RATE, describe_plan, describe_services, dry_run, duration, flops_of_token
from trainers.setup.options.read_config import read_config
from trainers.setup.placement import gpus_available
from trainers.setup.plan import make_plan, ready
from trainers.setup.run_plan import RunPlan
from trainers.titan.settings import TitanSettings

GUIDE = str(Path(__file__).parent / "data" / "torchforge_guide.yaml")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int, algorithm: Algorithm = GRPO) -> str:
    """What a dry run prints, with every run of spaces as one."""
    assert enter(algorithm, never, ["--dry-run", *arguments]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err and (err.startswith("error: ") if code else not err)
    return " ".join(out.split()) + " " + err


# ---- placement ----


def test_the_reference_model_computes_as_the_trainer_does() -> None:
    arguments = ["--training.dtype=bfloat16", "--training.packing", "--training.fp32_head", "--ref_model.threads=3"]
    plan = plan_of(*arguments, "--training.max_tokens_per_micro_batch=512")
    computes = {"dtype": "bfloat16", "fp32_head": True, "max_tokens_per_micro_batch": 512, "pack_length": 512}
    assert plan.frozen(plan.config.services.ref_model) == TitanSettings(**computes, threads=3)
    assert {name: getattr(plan.trainer, name) for name in computes} == computes


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


# ---- memory ----


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


def test_an_engine_that_cannot_return_routes_is_refused() -> None:
    arguments = ("--generator.with_gpus", "--generator.engine.enable_prefix_caching=false")
    found = refusal(MOE, *arguments)
    assert "enable_prefix_caching is false, and vLLM 0.32" in found and found.endswith("or set --moe.replay off")
    for others in ([MOE, "--moe.replay=off"], []):
        plan_of(*others, *arguments)


def test_the_first_step_and_each_after_an_interval_is_measured_without_replay() -> None:
    plan = plan_of(MOE, "--moe.compare_interval=3")
    assert [step for step in range(1, 9) if plan.compares_replay(step)] == [1, 4, 7]
    for arguments in ([MOE, "--moe.compare_interval=0"], [MOE, "--moe.replay=off"], []):
        assert not any(map(plan_of(*arguments).compares_replay, range(1, 30)))


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


# ---- the cost of a step ----


def test_the_cost_of_a_step_follows_tokens_and_parameters() -> None:
    shape = made_shape("tiny")
    multiplied = shape.parameters - 640 * 128 - 128  # the embedding is looked up; the last norm is a handful
    flops = 8 * multiplied * 96 * 512
    [said] = lines_of(plan_of(), "cost of a step")
    assert said.startswith(f"at most {flops:.0e} FLOPs, with 49,152 tokens ")
    assert f"roughly {duration(flops / RATE)} on two cores, and {duration(120 * flops / RATE)} for all steps" in said


def test_adapters_cost_less_and_idle_experts_nothing() -> None:
    dense, experts = known_shapes()["Qwen/Qwen3-8B"], known_shapes()["Qwen/Qwen3-30B-A3B"]
    assert 4 * flops_of_token(dense, has_adapters=True) == 3 * flops_of_token(dense)
    assert flops_of_token(experts) < flops_of_token(dense)


# ---- facts ----


ARGUMENTS = ["--model=Qwen/Qwen3-0.6B", "--lora.rank=4", "--launcher.gpus_per_host=4", "--generator.with_gpus"]


def test_another_config_gives_other_facts() -> None:
    plan = make_plan(read_config(Config, ARGUMENTS), GRPO)
    assert plan.lora is not None and plan.lora is plan.lora and plan.trainer.lora is plan.lora
    changes = {"lora.rank": 0, "services.generator.num_replicas": 2, "training.sync_interval": 3, "env.max_turns": 5}
    other = replace(plan, config=with_values(plan.config, changes))
    assert (plan.placement.gpus_needed, other.placement.gpus_needed) == (1, 2)
    assert (other.lora, other.config.training.most_behind, plan.lora.rank) == (None, 2, 4)
