"""The defaults by what is trained: the table, what bounds it, and settings far from what is usual."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from forge_env.rollout.factory import make
from forge_env.utils.settings import with_values
from tests.helpers.hub import read_later
from tests.trainers.setup.test_recipes import RECIPES
from trainers import sft
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO
from trainers.model.sizes import MODEL_SIZES
from trainers.setup.checks import model_checks
from trainers.setup.describe import describe_plan
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

GIVEN = "--model=Qwen/Qwen3-8B"


def plan_of(*arguments: str, algorithm: Algorithm = GRPO) -> RunPlan:
    return make_plan(read_config(algorithm.config, list(arguments)), algorithm)


def said_of(plan: RunPlan, name: str = "defaults") -> list[str]:
    return [text for line, text in describe_plan(plan) if line == name]


@pytest.mark.parametrize(
    ("arguments", "rates", "warmup", "limits"),
    [
        ([], (6e-4, 3e-3), (200, 6), (3, 32, 512, 300.0)),
        (["--model.size=tiny-moe"], (6e-4, 3e-3), (200, 6), (3, 32, 512, 300.0)),
        (["--model.size=100m"], (6e-5, 6e-4), (200, 6), (3, 32, 512, 300.0)),
        ([GIVEN], (1e-6, 1e-5), (0, 10), (8, 512, 4096, 600.0)),
        ([GIVEN, "--lora.rank=16"], (1e-5, 1e-4), (0, 10), (8, 512, 4096, 600.0)),
    ],
)
def test_the_table(
    arguments: list[str], rates: tuple[float, ...], warmup: tuple[int, ...], limits: tuple[float, ...]
) -> None:
    plan = plan_of(*arguments)
    config = plan.config
    assert (config.training.learning_rate, config.warmup.learning_rate) == rates
    assert (config.warmup.steps, plan.rising_steps) == warmup
    env = config.env
    assert (env.max_turns, env.max_turn_tokens, env.max_tokens, env.episode_seconds) == limits


def folder_of(path: Path, size: str, **changed: int) -> Path:
    """The config.json of a model of this size made on the spot, as its export has it."""
    made = asdict(MODEL_SIZES[size]) | changed
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3", **made}))
    (path / "model.safetensors").write_bytes(b"")
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.mark.parametrize(
    ("size", "rates", "changed"),
    [
        ("tiny", (6e-4, 3e-3), {"vocab_size": 600}),
        ("100m", (6e-5, 6e-4), {"vocab_size": 900}),
        ("100m", (5e-5, 5e-4), {"vocab_size": 49152}),  # 134 million, as SmolLM2-135M has
    ],
)
def test_the_rate_of_a_given_model_follows_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, rates: tuple[float, float], changed: dict[str, int]
) -> None:
    monkeypatch.setattr(model_checks, "check_folder", lambda plan, folder: plan.model)  # only its size is there
    folder = folder_of(tmp_path / "model", size, **changed)
    limits = ["--env.max_tokens=512", "--env.max_turn_tokens=64"]
    plan = plan_of(f"--model={folder}", *limits)
    assert (plan.config.training.learning_rate, plan.config.warmup.learning_rate) == rates
    adapted = plan_of(f"--model={folder}", "--lora.rank=8", *limits)
    assert adapted.config.training.learning_rate == pytest.approx(10 * rates[0])
    for rate in (rates[0] / 20, 20 * rates[0]):
        assert said_of(plan_of(f"--model={folder}", f"--training.learning_rate={rate}", *limits), "warning") == []


@pytest.mark.parametrize(
    ("name", "rate"),
    [("Qwen/Qwen3-0.6B", 1e-5), ("Qwen/Qwen3-1.7B", 4e-6), ("Qwen/Qwen3-32B", 1e-6), ("nobody/knows-this", 1e-6)],
)
def test_a_larger_model_has_a_smaller_rate_down_to_that_of_8_billion(name: str, rate: float) -> None:
    assert plan_of(f"--model={name}").config.training.learning_rate == rate


ON_A_GPU = ("--trainer.with_gpus", "--generator.with_gpus", "--launcher.gpus_per_host=1")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["--model.size=100m", "--launcher.gpu_memory_gib=80"], 65536),
        (["--model.size=100m", "--launcher.gpu_memory_gib=24"], 32768),
        (["--model=Qwen/Qwen3-0.6B", "--launcher.gpu_memory_gib=141"], 32768),  # of more the logits are not kept
        (["--model=Qwen/Qwen3-4B", "--launcher.gpu_memory_gib=141"], 16384),
        (["--model=Qwen/Qwen3-4B", "--launcher.gpu_memory_gib=80"], 4096),
        (["--model=Qwen/Qwen3-0.6B"], 4096),  # a card of unknown size
        (["--model=nobody/knows-this", "--launcher.gpu_memory_gib=80"], 4096),
        (["--model=Qwen/Qwen3-0.6B", "--launcher.gpu_memory_gib=80", "--training.max_tokens_per_micro_batch=512"], 512),
    ],
)
def test_the_micro_batch_on_a_gpu_is_what_the_card_has_room_for(arguments: list[str], tokens: int) -> None:
    plan = plan_of(*ON_A_GPU, *arguments)
    assert plan.config.training.max_tokens_per_micro_batch == tokens
    said = [text for text in said_of(plan) if "max_tokens_per_micro_batch" in text]
    assert bool(said) == (tokens > 4096) and all("GiB has room for it" in text for text in said)
    smaller = plan_of(*ON_A_GPU, *arguments[:2], "--training.max_tokens_per_micro_batch=4096")
    assert plan.engine.sleep == smaller.engine.sleep, "the engine pays nothing for it"


def test_a_model_that_is_read_later_gets_its_micro_batch_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(*ON_A_GPU, "--model=nobody/knows-this", "--launcher.gpu_memory_gib=80", "--env.max_tokens=1024")
    read = read_later(plan, folder_of(tmp_path / "model", "100m"), monkeypatch)
    assert read.config.training.max_tokens_per_micro_batch == 65536


@pytest.mark.parametrize(
    ("arguments", "cores", "processes"),
    [
        (["--training.batch_size=64"], 16, 4),
        (["--training.batch_size=64"], 8, 2),
        (["--training.batch_size=64"], 3, 1),
        (["--training.batch_size=32", "--training.staleness=1"], 64, 4),
        (["--training.batch_size=16"], 16, 1),
        (["--training.batch_size=64", "--env=code_exec"], 16, 2),  # of each environment
        (["--training.batch_size=64", "--services.envs.num_replicas=1"], 16, 1),
        (["--training.batch_size=64", "--generator.with_gpus=false"], 16, 1),
    ],
)
def test_many_episodes_have_several_processes(
    arguments: list[str], cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    plan = plan_of(*ON_A_GPU, "--env=math", "--warmup.steps=0", *arguments)
    assert plan.config.services.envs.num_replicas == processes
    envs = [process for process in plan.placement.processes if process.service == "envs"]
    assert len(envs) == processes * len(plan.environments)
    said = [text for text in said_of(plan) if text.startswith("services.envs.num_replicas")]
    assert said == ([f"services.envs.num_replicas {processes} (512 episodes at once, {cores} cores)"] * (processes > 1))


def test_an_environment_that_listens_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.math.env.Math.one_process", True)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    assert plan_of(*ON_A_GPU, "--env=math", "--training.batch_size=64").config.services.envs.num_replicas == 1


def test_supervised_steps_are_measured_in_micro_batches_of_one_size() -> None:
    arguments = ("--model=Qwen/Qwen3-0.6B", "--launcher.gpu_memory_gib=80", "--sft.data=somebody/chats")
    assert plan_of(*ON_A_GPU, *arguments, algorithm=sft.SFT).config.training.max_tokens_per_micro_batch == 4096


@pytest.mark.parametrize(
    ("arguments", "packing", "compiled"),
    [
        ([], False, False),
        ([*ON_A_GPU], True, True),
        ([*ON_A_GPU, "--training.packing=false", "--training.compile=false"], False, False),
        ([*ON_A_GPU, "--training.attention=sdpa"], False, True),
        (["--generator.with_gpus"], False, False),
        (["--training.packing"], True, False),
    ],
)
def test_a_trainer_on_a_gpu_packs_and_is_compiled_where_it_can(
    arguments: list[str], packing: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.setup.options.read_config.gpus_available", lambda: 0)
    monkeypatch.setenv("CC", "cc")
    training = read_config(GRPO.config, arguments).training
    assert (training.packing, training.compile) == (packing, compiled)


def test_without_a_c_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not read_config(GRPO.config, ON_A_GPU).training.compile


def test_supervised_training_has_the_rate_of_the_warm_up() -> None:
    for arguments, rate in (([], 3e-3), ([GIVEN], 1e-5), ([GIVEN, "--lora.rank=8"], 1e-4)):
        for source in ("--env=code_exec", "--sft.data=somebody/chats"):
            config = plan_of(source, *arguments, algorithm=sft.SFT).config
            assert config.training.learning_rate == config.warmup.learning_rate == rate


@pytest.mark.parametrize(
    ("arguments", "rising"),
    [([], {1: 0, 19: 0, 20: 1, 120: 6, 200: 10, 5000: 10}), ([GIVEN], {1: 0, 3: 1, 4: 2, 20: 10, 5000: 10})],
)
def test_the_learning_rate_rises_over_a_part_of_the_steps(arguments: list[str], rising: dict[int, int]) -> None:
    found = {steps: plan_of(*arguments, f"--steps={steps}") for steps in rising}
    assert {steps: plan.rising_steps for steps, plan in found.items()} == rising
    assert plan_of(*arguments, "--training.warmup_steps=7").rising_steps == 7


def test_steps_that_the_data_decides_on_are_waited_for() -> None:
    for arguments, rising in (([], 0), ([GIVEN], 10)):
        plan = plan_of("--sft.data=somebody/chats", *arguments, algorithm=sft.SFT)
        known = replace(plan, steps=40)
        assert (plan.steps, known.steps, known.rising_steps) == (0, 40, rising)
    given = plan_of("--sft.data=somebody/chats", "--training.warmup_steps=3", algorithm=sft.SFT)
    assert replace(given, steps=40).rising_steps == 3


@pytest.mark.parametrize("name", ["math", "code_exec"])
def test_a_given_model_is_trained_and_evaluated_with_the_same_limits(name: str) -> None:
    has_the_same_limits(name)


def has_the_same_limits(name: str) -> None:
    assert plan_of(GIVEN, f"--env={name}").config.env.limits() == make(name).episode_limits()


def test_an_episode_is_never_longer_than_the_model_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 640, "max_position_embeddings": 1024,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    plan = plan_of("--model=nobody/knows-this")
    found = read_later(plan, tmp_path, monkeypatch)
    assert (plan.config.env.max_tokens, found.config.env.max_tokens) == (4096, 1024)
    assert found.engine.max_model_len == 1024
    assert "env.max_tokens 1024 (all that the model reads)" in said_of(found)


def test_a_plan_says_its_defaults_with_their_reason_and_leaves_out_what_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from envs.math import Math\n\n\nclass Own(Math):\n    @classmethod\n    def limits(cls, **_):\n"
        "        return {'max_turns': 1, 'max_turn_tokens': 2048, 'max_tokens': 4096}\n"
    )
    said = said_of(plan_of(GIVEN, "--env=own.py:Own", "--training.warmup_steps=5"))
    assert "training.learning_rate 1e-06 (all weights of a given model, 8,191 million parameters)" in said
    assert any(text.startswith("warmup.steps 0") and text.endswith("(all weights of a given model)") for text in said)
    assert "env.max_turns 1, env.max_turn_tokens 2048, env.max_tokens 4096 (declared by own.py:Own)" in said
    assert not any("training.warmup_steps" in text for text in said)
    (tiny,) = said_of(plan_of())
    assert "training.learning_rate 0.0006" in tiny and "warmup_steps 6 (a tiny model made on the spot)" in tiny


def test_the_rise_follows_the_steps_of_a_run_that_goes_on_for_fewer() -> None:
    """A checkpoint holds the config of the plan, and --training.steps may change."""
    begun = plan_of(GIVEN, "--steps=1000")
    again = make_plan(with_values(begun.config, {"training.steps": 4}), GRPO)
    assert again.rising_steps == 2 and not any("decay" in problem for problem in again.problems)


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (
            [GIVEN, "--training.learning_rate=5e-4"],
            "training.learning_rate",
            ["0.0005, far above", "million parameters: 1e-06"],
        ),
        ([GIVEN, "--training.learning_rate=0"], "training.learning_rate", ["is 0, far below"]),
        ([GIVEN, "--lora.rank=8", "--training.learning_rate=1e-7"], "training.learning_rate", ["adapters", "1e-05"]),
        ([GIVEN, "--warmup.steps=5", "--warmup.learning_rate=3e-3"], "warmup.learning_rate", ["0.003, far above"]),
        (["--training.learning_rate=1e-6"], "training.learning_rate", ["far below", "made on the spot: 0.0006"]),
        ([GIVEN, "--env.max_turn_tokens=32"], "env.max_turn_tokens", ["is 32, far below", "512", "is cut off"]),
    ],
)
def test_a_value_far_from_what_is_usual_is_warned_of_once(arguments: list[str], name: str, words: list[str]) -> None:
    (warning,) = said_of(plan_of(*arguments), "warning")
    assert warning.startswith(f"--{name} is ") and [word for word in words if word not in warning] == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [GIVEN, "--training.learning_rate=5e-6"],
        [GIVEN, "--lora.rank=16", "--training.learning_rate=1e-4"],
        [GIVEN, "--training.seq_len=8192", "--env.max_turn_tokens=256"],
        [GIVEN, "--warmup.learning_rate=3e-3"],
        *(["--config", str(path)] for path in RECIPES),
    ],
    ids=str,
)
def test_a_usual_value_is_not_warned_of(arguments: list[str]) -> None:
    assert said_of(plan_of(*arguments), "warning") == []
