"""A run's checkpoints without a trainer: which one is found, which is refused and how, which are removed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from forge_env.records.run_files import MANIFEST, env_here, steps_of
from forge_env.utils.settings import BY_CASE, with_values
from trainers import sft
from trainers.checkpoints import clean, find, path_of, prune, write_manifest
from trainers.config import RunConfig
from trainers.grpo import GRPO, Config
from trainers.setup.checks import output_folder
from trainers.setup.checks.output_folder import check_output, claim_folder, clear, new_folder
from trainers.setup.checks.resume_checks import check_fits, lock_folder
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_tasks import data_digests


def save(run: Path, step: int, config: RunConfig | None = None, **extra: Any) -> Path:
    """A folder as the trainer leaves it, with some bytes in the place of its state."""
    folder = path_of(run, step)
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "0.distcp").write_bytes(bytes(step + 1))
    extra = {
        "algorithm": "grpo",
        "command": "trainers.grpo",
        "config": json.loads(json.dumps(asdict(config or Config()))),
        **extra,
    }
    write_manifest(folder, {"step": step, "extra": extra})
    return folder


def saved(run: Path) -> list[int]:
    return list(steps_of(run))


# ---- which one is found ----


def test_the_newest_is_found_by_number_and_not_by_name(tmp_path: Path) -> None:
    for step in (999_999, 40, 1_000_000):
        save(tmp_path, step)
    assert saved(tmp_path) == [40, 999_999, 1_000_000]
    assert find(tmp_path).step == 1_000_000
    checkpoint = find(tmp_path, 40)
    assert checkpoint.path == tmp_path / "checkpoints" / "step_000040" and checkpoint.extra["algorithm"] == "grpo"


def test_an_incomplete_checkpoint_is_not_found(tmp_path: Path) -> None:
    save(tmp_path, 20)
    for name in (".step_000040.partial", ".step_000020.old", "notes", "step_40", "step_000040.bak"):
        (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints" / "step_000060").write_text("a file")
    assert find(tmp_path).step == 20


def test_without_a_checkpoint_there_is_one_sentence(tmp_path: Path) -> None:
    for run in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="holds no complete checkpoint.*--checkpoint.interval"):
            find(run)
    save(tmp_path, 20)
    save(tmp_path, 40)
    with pytest.raises(UserError, match="--checkpoint.step is 30, .* it has 20, 40"):
        find(tmp_path, 30)


STATE = "state/0.distcp"


def forget_the_run(folder: Path) -> None:
    """A checkpoint that somebody made with the trainer alone."""
    (folder / MANIFEST).unlink()
    write_manifest(folder, {"step": 40, "extra": {}})


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda folder: (folder / STATE).write_bytes(b""), "is damaged: state/0.distcp has 0 bytes of 41"),
        (lambda folder: os.truncate(folder / STATE, 20), "is damaged: state/0.distcp has 20 bytes of 41"),
        (lambda folder: (folder / STATE).unlink(), "is damaged: state/0.distcp has 0 bytes of 41"),
        (lambda folder: (folder / MANIFEST).unlink(), "is not a checkpoint of this trainer"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read"),
        (forget_the_run, "names no algorithm"),
    ],
)
def test_a_damaged_one_is_refused_by_name_and_an_older_one_is_offered(tmp_path: Path, damage: Any, match: str) -> None:
    save(tmp_path, 20)
    damage(save(tmp_path, 40))
    with pytest.raises(UserError, match=f"step_000040 .*{match}.*; go on from an older one with --checkpoint.step 20$"):
        find(tmp_path)
    assert find(tmp_path, 20).step == 20
    damage(path_of(tmp_path, 20))
    with pytest.raises(UserError, match="step_000020 .*; there is no older one$"):
        find(tmp_path, 20)


def test_the_environment_in_a_run_moves_with_its_folder(tmp_path: Path) -> None:
    before = "/before/run/environment.pkl:Larger"
    save(tmp_path, 40, config_with(env__name=before))
    assert find(tmp_path).extra["config"]["env"]["name"] == before  # of another run, whose environment this one took
    (tmp_path / "environment.pkl").touch()
    assert env_here(before, tmp_path) == f"{tmp_path}/environment.pkl:Larger"
    assert find(tmp_path).extra["config"]["env"]["name"] == env_here(before, tmp_path)


# ---- whether it fits ----


def config_with(**changes: Any) -> Config:
    return with_values(Config(), {name.replace("__", "."): value for name, value in changes.items()})


def test_a_run_goes_on_elsewhere_longer_and_slower(tmp_path: Path) -> None:
    save(tmp_path, 40)
    config = config_with(output="x", resume=True, training__steps=500, training__learning_rate=1e-5)
    changes = {
        "training.attention": "sdpa",
        "training.reshard_after_forward": "never",
        "weights.store": "shared_memory",
    }
    changes |= {"parallelism.tensor_parallel_degree": 2, "launcher.kind": "processes", "launcher.hosts": 2}
    changes |= {"services.trainer.procs": 4, "checkpoint.keep_last": 5, "env.step_seconds": 90.0}
    config = with_values(config, changes)
    check_fits(find(tmp_path), "grpo", config)


def test_every_setting_that_differs_is_named(tmp_path: Path) -> None:
    save(tmp_path, 40, config_with(training__seed=7))
    config = config_with(env__name="math", env__options={"level": 2}, model__path="some/model")
    with pytest.raises(UserError) as error:
        check_fits(find(tmp_path), "grpo", config)
    for part in (
        "step_000040",
        "--env.name is math and was code_exec",
        "--env.options.level is 2 and was not set",
        "--model.path is some/model and was not set",
        "--training.seed is 0 and was 7",
    ):
        assert part in str(error.value)
    assert str(error.value).count(" and was ") == 4


def test_another_algorithm_or_too_few_steps_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 40)
    with pytest.raises(UserError, match="by grpo, and this is dapo: go on with python -m trainers.grpo"):
        check_fits(find(tmp_path), "dapo", Config())
    with pytest.raises(UserError, match="--training.steps is 30, .* at least 40"):
        check_fits(find(tmp_path), "grpo", config_with(training__steps=30))


def test_moments_of_8_bits_keep_the_degree_of_tensor_parallelism(tmp_path: Path) -> None:
    config = config_with(training__optimizer_state="8bit", parallelism__tensor_parallel_degree=2)
    save(tmp_path, 40, config)
    config = with_values(config, {"parallelism.data_parallel_replicate_degree": 2})
    check_fits(find(tmp_path), "grpo", config)
    config = with_values(config, {"parallelism.tensor_parallel_degree": 4})
    with pytest.raises(UserError, match="tensor_parallel_degree is 4, and .*step_000040 was saved with 2 .* give 2$"):
        check_fits(find(tmp_path), "grpo", config)


# ---- which are removed ----


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 8), st.integers(0, 30) | st.none())
def test_the_newest_stay_and_the_spared_one(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep: int, spare: int | None
) -> None:
    run = tmp_path_factory.mktemp("run")
    for step in steps:
        save(run, step)
    prune(run, keep, spare)
    assert saved(run) == sorted({*sorted(steps)[-max(1, keep) :], *({spare} & steps)})
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [path_of(run, s).name for s in saved(run)]


def test_going_back_removes_half_written_and_later_checkpoints(tmp_path: Path) -> None:
    for step in (20, 40, 60):
        save(tmp_path, step)
    for name in (".step_000080.partial", ".step_000010.old"):
        (tmp_path / "checkpoints" / name / "state").mkdir(parents=True)
    clean(tmp_path, 40)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_000020", "step_000040"]


def test_a_run_that_counts_its_steps_by_epochs_goes_on(tmp_path: Path) -> None:
    config = sft.Config()
    save(tmp_path, 40, config, algorithm="sft")
    assert config.training.steps == BY_CASE
    check_fits(find(tmp_path), "sft", config)


# ---- the folder of a run ----


def test_a_folder_that_holds_a_run_is_refused_and_the_way_on_is_named(tmp_path: Path) -> None:
    save(tmp_path, 40)
    with pytest.raises(UserError, match="is not empty.*--resume"):
        check_output(str(tmp_path))
    assert claim_folder(str(tmp_path / "a/new")) == [tmp_path / "a/new", tmp_path / "a"]


METRICS = '{"phase": "warmup", "step": 3, "time": 1.0}\n'


@pytest.mark.parametrize(
    ("files", "is_its_own"),
    [
        ({}, True),
        ({"console.jsonl": "", "logs/envs.log": "", "initial_model/config.json": "{}", "secrets.json": "[]"}, True),
        ({"console.jsonl": "", "metrics.jsonl": METRICS, "episodes/warmup.jsonl": ""}, True),
        ({"console.jsonl": "", "metrics.jsonl": METRICS.replace("warmup", "train")}, False),
        ({"console.jsonl": "", "metrics.jsonl": METRICS[:9]}, False),
        ({"console.jsonl": "", "checkpoints/step_000001/forge_env.json": "{}"}, False),
        ({"console.jsonl": "", "summary.json": "{}"}, False),
        ({"console.jsonl": "", "notes.txt": "mine"}, False),
        ({"logs/mine.log": ""}, False),
        ({"report.html": "mine"}, False),
    ],
)
def test_the_folder_of_a_run_that_trained_nothing_is_free(
    tmp_path: Path, files: dict[str, str], is_its_own: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if not is_its_own:
        with pytest.raises(UserError, match="is not empty"):
            check_output(str(tmp_path))
        return
    check_output(str(tmp_path))
    assert claim_folder(str(tmp_path)) == []
    (tmp_path / "notes.txt").write_text("mine")  # while the run begins
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output_folder, "datetime", SimpleNamespace(now=lambda: datetime(2026, 1, 2)))
    folders = [Path(new_folder("grpo", "code_exec")).name for _ in range(3)]
    assert folders == [f"grpo-code_exec-20260102-000000{more}" for more in ("", "-2", "-3")]
    (tmp_path / "outputs").rename("kept")
    (tmp_path / "outputs").symlink_to("not mounted")
    with pytest.raises(UserError, match="--output outputs/grpo.* cannot be made"):
        claim_folder(new_folder("grpo", "code_exec"))


def test_a_run_that_cannot_be_resumed_is_refused_before_it_starts(tmp_path: Path) -> None:
    assert make_plan(Config(), GRPO).checkpoint is None
    config = config_with(resume=True, output=str(tmp_path), training__steps=40)
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        make_plan(config, GRPO)
    new = with_values(config, {"resume": False, "output": ""})
    save(tmp_path, 40, make_plan(new, GRPO).config)
    assert make_plan(config, GRPO).checkpoint is not None  # killed while it was measured
    (tmp_path / "summary.json").write_text('{"steps": 40}')
    with pytest.raises(UserError, match="is complete, with all its 40 steps, and none is left to take after"):
        make_plan(config, GRPO)
    (tmp_path / "summary.json").write_text('{"steps": 80}')  # a longer run
    of_40 = with_values(config, {"checkpoint.step": 40})
    with pytest.raises(UserError, match=r"with all its 80 steps, and none is left .* .*/step_000040: raise"):
        make_plan(of_40, GRPO)
    assert make_plan(with_values(of_40, {"training.steps": 80}), GRPO).checkpoint is not None
    config = with_values(config, {"training.steps": 41})
    assert make_plan(config, GRPO).checkpoint is not None


def test_a_plan_refuses_what_a_resumed_run_would_miss(tmp_path: Path, tiny_model: Path) -> None:
    """The record, the data, the reference model, the model, and another process: each in one sentence."""
    data, reference = tmp_path / "q.jsonl", ["--ref_model.procs=1", "--grpo.beta=0.1"]
    rows = [json.dumps({"question": f"1 + {n}", "answer": n + 1}) for n in range(40)]
    data.write_text("\n".join(rows))
    options = ["--env=math", f"--env.options.data={data}", f"--model={tiny_model}", "--steps=60", *reference]
    plan = make_plan(read_config(Config, options), GRPO)
    run = tmp_path / "run"
    save(run, 40, plan.config, report={"bytes": {"metrics.jsonl": 5}}, warmup_steps=3)
    (run / "run.json").write_text(json.dumps({"data": {"files": data_digests(plan.views)}}))
    (run / "metrics.jsonl").write_text("12345")
    (run / "reference.safetensors").write_text("")

    def refusal() -> str:
        with pytest.raises(UserError) as caught:
            make_plan(read_config(Config, ["--resume", f"--output={run}"]), GRPO)
        return str(caught.value)

    make_plan(read_config(Config, ["--resume", f"--output={run}"]), GRPO)
    with lock_folder(run):
        assert f"another process is at work on the run in {run}" in refusal()
    (run / "reference.safetensors").unlink()
    assert f"{run}/reference.safetensors is missing, the reference model" in refusal()
    data.write_text("\n".join(rows[1:]))
    assert f"the data file {data} has changed since this run began" in refusal()
    (run / "metrics.jsonl").write_text("1")
    assert "metrics.jsonl has 1 bytes, and had 5 when the checkpoint was saved" in refusal()


def test_a_folder_that_cannot_be_made_is_refused_by_the_plan(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output .*/file/run cannot be made: Not a directory; choose another folder"):
        make_plan(config_with(output=str(tmp_path / "file" / "run")), GRPO)


def test_two_processes_cannot_be_at_work_on_one_run(tmp_path: Path) -> None:
    # A lock belongs to an open file, so a second one here is as good as one elsewhere.
    with lock_folder(tmp_path), pytest.raises(UserError, match="another process is at work"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
