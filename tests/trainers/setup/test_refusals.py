"""Every refusal of the options of a run: the whole sentence, which says how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.registry import contrib
from forge_env.runtime.weights.one_host import shared_memory
from tests.helpers.plans import plan_of, refusal
from tests.helpers.rows import rows

CABINET = f"{Path(__file__).parents[3]}/examples/filing_cabinet.py:FilingCabinet"


@pytest.mark.parametrize(("algorithm", "options", "sentence"), rows(__file__, "refusals.tsv"))
def test_a_refusal_is_one_sentence(algorithm: str, options: str, sentence: str) -> None:
    found = refusal(options.replace("{cabinet}", CABINET), algorithm=algorithm)
    assert found == sentence.replace("{cabinet}", CABINET)


def test_hosts_need_a_part_of_contrib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    sentence = "--launcher.kind is processes, and no part for several hosts is installed: set it to local"
    assert refusal("--launcher.kind=processes") == sentence


def test_what_observes_a_run_is_a_part_of_contrib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    assert refusal("--metrics.tensorboard=true") == (
        "--metrics.tensorboard is true, and no part for TensorBoard's files is installed: set it to false"
    )
    assert refusal("--metrics.system_seconds=5") == (
        "--metrics.system_seconds is 5, and no part that measures the machine is installed: set it to 0"
    )
    metrics = plan_of("--env=math", "--metrics.tensorboard=false").config.metrics
    assert (metrics.tensorboard, metrics.system_seconds) == (False, 0.0)


def test_a_run_for_whose_weights_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    monkeypatch.setattr(shared_memory, "room", lambda: 1000)
    plan = plan_of("--env=math")
    sentence = "--weights.store is auto, which leaves shared memory, and /dev/shm has "
    (problem,) = [problem for problem in plan.problems if problem.startswith(sentence)]
    assert problem.endswith("that 3 snapshots take: make it larger (docker run --shm-size)")


def test_data_is_shown_as_the_user_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = refusal("--env=math --dataset.path=tasks.jsonl")
    assert found == f"--dataset.path is 'tasks.jsonl', and there is no file {tmp_path / 'tasks.jsonl'}"
    (tmp_path / "tasks.jsonl").write_text("[1,\n")
    assert refusal("--env=math --dataset.path=tasks.jsonl").startswith("no row of tasks.jsonl can be used: ")
