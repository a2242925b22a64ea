"""Which hosts a config names, where the processes go on them, and what their weights take."""

from __future__ import annotations

import pytest

from contrib.clusters.hosts.hosts import Hosts
from forge_env.core.errors import UserError
from trainers.grpo import GRPO, Config
from trainers.setup.checks.no_effect import no_effect
from trainers.setup.describe import describe_plan
from trainers.setup.options.read_config import read_config
from trainers.setup.placement import Placement, ReplicaPlace, make_placement
from trainers.setup.plan import make_plan


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)


def config_of(*arguments: str) -> Config:
    return read_config(Config, list(arguments))


def test_one_machine_is_the_default() -> None:
    config = config_of()
    config.launcher.check()
    assert config.launcher.count == 1
    assert {process.host for process in place(config).processes} == {None}


def test_hosts_are_counted() -> None:
    named = config_of("--launcher.kind=workers", "--launcher.workers=one,two three:5")
    named.launcher.check()
    assert len(Hosts(named.launcher)) == named.launcher.count == 3
    assert config_of("--launcher.kind=processes", "--launcher.hosts=2").launcher.count == 2
    planned = config_of("--launcher.kind=slurm", "--launcher.hosts=4")  # outside of a cluster
    assert planned.launcher.count == 4


def place(config: Config) -> Placement:
    return make_placement(config, has_reference=False)


TWO = ("--launcher.kind=processes", "--launcher.hosts=2", "--launcher.gpus_per_host=4")
GPUS = ("--trainer.with_gpus", "--generator.with_gpus")


def test_engines_are_spread_and_environments_sit_with_them() -> None:
    places = place(config_of(*TWO, "--generator.num_replicas=3", "--services.envs.num_replicas=4")).replicas
    assert [replica.host for replica in places["trainer"]] == [0]
    assert [replica.host for replica in places["generator"]] == [1, 0, 1]
    assert [replica.host for replica in places["envs"]] == [1, 0, 1, 1]


def test_the_trainers_ranks_are_packed_and_engines_take_what_is_left() -> None:
    engines = ("--generator.procs=2", "--generator.num_replicas=3")
    places = place(config_of(*TWO, *GPUS, "--trainer.procs=2", *engines)).replicas
    assert places["trainer"] == [ReplicaPlace(host=0, gpus=(2, 3))]
    assert places["generator"] == [
        ReplicaPlace(host=1, gpus=(0, 1)),
        ReplicaPlace(host=0, gpus=(0, 1)),
        ReplicaPlace(host=1, gpus=(2, 3)),
    ]


def test_a_trainer_on_two_hosts_has_the_same_gpus_on_both() -> None:
    config = config_of(*TWO, *GPUS, "--trainer.procs=6", "--generator.num_replicas=2")
    make_plan(config, GRPO)  # which checks that they fit
    assert place(config).replicas["trainer"] == [ReplicaPlace(host=0, num_hosts=2, gpus=(0, 1, 2))]
    assert place(config).replicas["generator"] == [ReplicaPlace(host=0, gpus=(3,)), ReplicaPlace(host=1, gpus=(3,))]
    ranks = [process.where for process in place(config).processes if process.service == "trainer"]
    assert ranks == [f"host {host}, GPU {gpu}" for host in (0, 1) for gpu in (0, 1, 2)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            [*TWO, *GPUS, "--trainer.procs=8"],
            "does not fit on 2 hosts with 4 GPUs each .*: generator 1, trainer 8, and all",
        ),
        (
            [*TWO, *GPUS, "--trainer.procs=5"],
            "^--services.trainer.procs is 5, which 2 hosts of 4 GPUs do not share evenly in whole groups of "
            "parallelism.tensor_parallel_degree, 1$",
        ),
        (
            [*TWO, *GPUS, "--trainer.procs=6", "--parallelism.tensor_parallel_degree=2"],
            "in whole groups of .*degree, 2",
        ),
        (
            [*TWO, "--launcher.share_gpus=yes"],
            "^--launcher.share_gpus is yes, which is for the GPUs of one machine, and the run has 2 hosts: leave it ",
        ),
        (
            ["--launcher.kind=slurm", "--launcher.hosts=2"],
            "^launcher.kind is slurm, and this is not inside of a SLURM allocation: submit the run with sbatch "
            "examples/slurm/submit.sh$",
        ),
        (
            ["--weights.store=nccl"],
            "^--weights.store is nccl, and not every service that holds the weights has GPUs: take shared_memory, or ",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_plan(config_of(*arguments), GRPO).check()


def test_a_lease_has_an_effect() -> None:
    plan = make_plan(config_of("--launcher.kind=processes", "--launcher.hosts=2", "--launcher.lease_seconds=9"), GRPO)
    assert no_effect(plan) == []


def test_the_memory_of_weights_that_go_by_nccl() -> None:
    services = ["--trainer", "--generator", "--ref_model"]
    arguments = [*(f"{name}.with_gpus" for name in services), "--ref_model.procs=1", "--grpo.beta=0.1"]
    arguments += ["--generator.procs=2", "--launcher.share_gpus=no", "--weights.store=nccl"]
    plan = make_plan(config_of(*arguments), GRPO)
    held = {(process.service, process.rank): memory.always for process, memory in plan.processes if memory}
    size = held["generator", 0]["received"]
    assert held["generator", 1]["received"] == size > 0
    assert all("received" not in held[service, 0] for service in ("trainer", "ref_model"))
    assert held["trainer", 0]["versions"] == size
    assert not held["store", 0]
    assert dict(describe_plan(plan))["weights"] == "through NCCL: as --weights.store says"
