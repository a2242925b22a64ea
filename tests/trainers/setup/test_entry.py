"""The way into a trainer: one sentence and an exit code for each mistake, and an orderly end for each signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forge_env.core.errors import InvariantError, NothingTrained, ServiceError, UserError
from tests.helpers.entry import never
from tests.helpers.hub import hub
from trainers import sft
from trainers.algorithm import Algorithm
from trainers.api import enter
from trainers.grpo import GRPO
from trainers.setup.run_plan import RunPlan

ROOT = Path(__file__).parents[3]


def assert_one_sentence(errors: str, *words: str) -> None:
    assert "Traceback" not in errors
    [sentence] = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert [word for word in words if word not in sentence] == []


# ---- mistakes that only the run itself can notice ----


def test_a_foreign_package_of_our_name(tmp_path: Path) -> None:
    """In a process of its own, as a user starts it: the foreign package is imported in the place of ours."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "__init__.py").write_text("")
    command = [sys.executable, "-m", "trainers.grpo", "--env", "math"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert_one_sentence(done.stderr, "'agents'", str(tmp_path / "agents"), str(ROOT))


@pytest.mark.parametrize(
    ("algorithm", "word"), [("trainers.reinforce:REINFORCE", "no_such_module"), (sft.SFT, "--loss")]
)
def test_a_loss_that_is_not_there_or_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: Algorithm | str, word: str
) -> None:
    options = ("--env", "math", "--loss", "no_such_module:MyLoss", "--output", str(tmp_path / "run"))
    assert enter(algorithm, never, options) == 2
    assert_one_sentence(capsys.readouterr().err, word)
    assert not (tmp_path / "run").exists()


# ---- mistakes, through enter() ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stepz", "5"], ["--stepz", "--steps"]),
        (["--grpo.n_sample", "5"], ["--grpo.n_sample", "--grpo.n_samples"]),
        (["--steps", "many"], ["'many'", "whole number"]),
        (["--steps"], ["--steps needs a value"]),
        (["--steps", "-1"], ["--training.steps is -1", "at least 1"]),
        (["--tasks", "-1"], ["--dataset.tasks is -1", "at least 0"]),
        (["--training.batch_size", "0"], ["--training.batch_size", "at least 1"]),
        (["--training.batch_size", "8", "--trainer.num_replicas", "2"], ["num_replicas is 2", "one trainer"]),
        (["--parallelism.tensor_parallel_degree", "2"], ["needs 2 trainer processes", "--trainer.procs 2"]),
        (["--epsilon", "0.3"], ["--epsilon", "--grpo.clip_low"]),
        (["--env", "code_exce"], ["'code_exce'", "Did you mean code_exec?"]),
        (["--env", "envs.math:Maths"], ["no attribute 'Maths'"]),
        (["--config", "no/such.yaml"], ["no/such.yaml"]),
        (["50"], ["'50' is not an option"]),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], options: list[str], words: list[str]) -> None:
    assert enter(GRPO, never, options) == 2
    assert_one_sentence(capsys.readouterr().err, *words)


def test_help_lists_every_setting_with_what_it_is_and_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(GRPO, never, ["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    words = (
        *("--steps", "training.steps", "--grpo.clip_high 0.28", "--env.name 'code_exec'"),
        "--trainer.NAME services.trainer.NAME",
        "--training.batch_size 12 Global prompts (= groups) per micro-step, over all ranks.",
        "instead of keeping them: saves memory, costs time. One of: none, selective",
        "--grpo.n_samples 8 Episodes of one group. At least 1.",  # said by the section that it builds on
        "--grpo.clip_low 0.2 From 0 to 1.",
        "services.ref_model: The frozen reference model of the KL penalty.",
    )
    assert [word for word in words if word not in text] == []
    assert enter("trainers.dapo:DAPO", never, ["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("--loss", "--advantages", "--dapo.n_samples 8", "--dapo.beta 0.0"))


# ---- how a run ends ----


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no such thing"), 2),
        (ServiceError("the trainer died"), 1),
        (NothingTrained("nothing was trained"), 3),
        (ExceptionGroup("", [ExceptionGroup("", [ServiceError("the trainer died")])]), 1),
    ],
    ids=["mistake", "machinery", "nothing trained", "group"],
)
def test_what_we_raise_on_purpose_is_one_sentence(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    async def run(plan: RunPlan, _: object) -> None:
        raise error

    assert enter(GRPO, run, []) == code
    assert_one_sentence(capsys.readouterr().err)


@pytest.mark.parametrize("error", [ZeroDivisionError(), InvariantError("one logprob per sampled token")])
def test_a_bug_of_ours_keeps_its_trace(error: Exception) -> None:
    async def run(plan: RunPlan, _: object) -> None:
        assert (plan.config.env.name, plan.steps) == ("math", 7)
        raise error

    with pytest.raises(type(error)):
        enter(GRPO, run, ["--env", "math", "--steps", "7"])


def test_ctrl_c_that_an_import_has_made_an_error_of_is_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    async def run(plan: RunPlan, _: object) -> None:
        numpy = RuntimeError("it cannot be imported")
        numpy.__cause__ = KeyboardInterrupt()
        raise UserError("my_env.py cannot be imported") from numpy

    assert enter(GRPO, run, []) == 130
    assert capsys.readouterr().err == "interrupted: nothing was started\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_what_was_started(number: signal.Signals, code: int) -> None:
    ended: list[str] = []

    async def run(plan: RunPlan, _: object) -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.wait_for(asyncio.Event().wait(), 10.0)
        finally:
            await asyncio.sleep(0)
            ended.append("services")

    assert enter(GRPO, run, []) == code
    assert ended == ["services"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_what_blocks_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.setattr("forge_env.utils.run_async.BLOCKED_SECONDS", 0.0)
    ended: list[str] = []

    async def run(plan: RunPlan, _: object) -> None:
        try:
            for _ in range(1000):  # as in `tasks` of a user, which never returns
                os.kill(os.getpid(), number)
            ended.append("tasks")
        finally:
            await asyncio.sleep(0)
            ended.append("services")

    assert enter(GRPO, run, []) == code
    assert ended == ["services"]


def test_a_family_that_cannot_be_trained_is_refused_before_its_weights_are_downloaded(tmp_path: Path) -> None:
    config = {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "hidden_size": 64, "vocab_size": 64}
    sizes = {"intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    with hub({"config.json": json.dumps(config | sizes), "model.safetensors": "x" * 64}) as (url, sent):
        command = [sys.executable, "-m", "trainers.grpo", "--env", "math", "--model", "some/moe"]
        environ = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1"}
        command += ["--output", str(tmp_path / "run")]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert_one_sentence(done.stderr, "is a Qwen2MoeForCausalLM", "can be trained")
    assert sent == ["config.json"] and not (tmp_path / "run").exists()
