"""Plans of runs on several hosts, and with the stores between them: refusals, memory, options that have an effect."""

from __future__ import annotations

import pytest

from tests.trainers.setup.test_no_effect import found
from tests.trainers.setup.test_plan import plan_of
from tests.trainers.setup.test_refusals import refusal
from trainers.setup.describe import describe_plan

REFUSED = {
    "--launcher.kind=workers --launcher.workers=a,a": "launcher.workers names a:22222 twice: name every host once",
    "--launcher.kind=workers --launcher.workers=a:99999": (
        "launcher.workers has 'a:99999', and a port is from 1 to 65535: write NAME or NAME:PORT"
    ),
    "--weights.store nccl": (
        "--weights.store is nccl, and not every service that holds the weights has GPUs: take shared_memory, or give "
        "trainer, generator and ref_model with_gpus"
    ),
    "--launcher.share_gpus=yes --launcher.kind=processes --launcher.hosts=2": (
        "--launcher.share_gpus is yes, which is for the GPUs of one machine, and the run has 2 hosts: leave it out"
    ),
    "--launcher.kind=workers": "launcher.workers is empty: name every host, as in --launcher.workers one,two:22223",
    "--launcher.kind=workers --launcher.workers=a:b": (
        "launcher.workers has 'a:b', which is not a host: write NAME or NAME:PORT"
    ),
    "--launcher.kind=workers --launcher.workers=a,b --launcher.hosts=3": (
        "--launcher.hosts is 3, and there are 2: set it to 2, or to 0"
    ),
    "--launcher.kind=slurm --launcher.hosts=2": (
        "launcher.kind is slurm, and this is not inside of a SLURM allocation: submit the run with sbatch "
        "examples/slurm/submit.sh"
    ),
    (
        "--launcher.kind=processes --launcher.hosts=2 --launcher.gpus_per_host=4 --trainer.with_gpus "
        "--generator.with_gpus --trainer.procs=5"
    ): (
        "--services.trainer.procs is 5, which 2 hosts of 4 GPUs do not share evenly in whole groups of "
        "parallelism.tensor_parallel_degree, 1"
    ),
}


@pytest.mark.parametrize("options", REFUSED)
def test_a_refusal_is_one_sentence(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert refusal(options) == REFUSED[options]


def test_a_lease_has_an_effect_on_several_hosts() -> None:
    assert found("--launcher.kind=processes --launcher.hosts=2 --launcher.lease_seconds=9") == []


def test_the_memory_of_weights_that_go_by_nccl() -> None:
    services = ["--trainer", "--generator", "--ref_model"]
    arguments = [*(f"{name}.with_gpus" for name in services), "--ref_model.procs=1", "--grpo.beta=0.1"]
    arguments += ["--generator.procs=2", "--launcher.share_gpus=no", "--weights.store=nccl"]
    plan = plan_of(*arguments)
    held = {(process.service, process.rank): memory.held for process, memory in plan.processes if memory}
    size = held["generator", 0]["received"]
    assert held["generator", 1]["received"] == size > 0
    assert all("received" not in held[service, 0] for service in ("trainer", "ref_model"))
    assert held["trainer", 0]["versions"] == size
    assert not held["store", 0]
    assert dict(describe_plan(plan))["weights"] == "through NCCL: as --weights.store says"
