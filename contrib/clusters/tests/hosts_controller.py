"""A controller of a run on two hosts, run by the tests as a process of its own, perhaps in a network of its own.

    python hosts_controller.py ENDING LOGS KIND WORKERS

It prints a JSON line for each thing that happens, and reads a line before it goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Literal, cast

from host_actors import Adder

from contrib.clusters.hosts.hosts import Hosts
from forge_env.core.errors import ForgeError
from forge_env.runtime.host_settings import HostSettings
from forge_env.runtime.launcher import Launcher, within
from forge_env.runtime.process.ranks import AllRanks

SILENCE_S, LEASE_S = 4.0, 4.0


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


async def told() -> None:
    """Wait until the test says to go on."""
    await asyncio.to_thread(sys.stdin.readline)


async def start_workers(launcher: Launcher) -> dict[str, Any]:
    """An actor on each host."""
    workers = {f"worker{index}": launcher.spawn(f"worker{index}", Adder, host=index) for index in (0, 1)}
    for name in workers:
        await launcher.start(name)
    return workers


async def work(launcher: Launcher) -> None:
    """Call actors on both hosts, and one from another; with `team`, add numbers up over ranks on both."""
    workers = await start_workers(launcher)
    for name, worker in workers.items():
        assert await within(60.0, worker.add.call_one(2, 3), name) == 5
        tell(name=name, pid=await within(60.0, worker.pid.call_one(), name))
    hosts = launcher.hosts
    assert hosts is not None
    tell(addresses=[hosts.info(i).address for i in (0, 1)], said=hosts.summary())


async def team(launcher: Launcher) -> None:
    from runtime_actors import Team

    ranks = AllRanks(launcher.spawn("team", Team, procs=2, num_hosts=2))
    await launcher.start("team")
    sums = await within(60.0, ranks.sum.call_one(2.0), "the team")
    places = list((await within(60.0, ranks._actor.places.call(), "the team")).values())
    tell(sums=sums, places=places)


async def weights(launcher: Launcher) -> None:
    """Weights from one host to the other, neither of which knows the other's address before."""
    from state_dicts import fingerprints, make_state_dict
    from weight_actors import Holder

    from contrib.clusters.nccl.store import NcclStore

    assert launcher.hosts is not None
    store = NcclStore()
    store.prepare(launcher.hosts.address)
    trainer, engine = (
        launcher.spawn(name, Holder, store=store, host=i) for i, name in enumerate(("trainer", "engine"))
    )
    await asyncio.gather(store.open(), *(launcher.start(name) for name in ("trainer", "engine")))
    for version in range(3):
        await within(60.0, trainer.publish_then_change.call_one(version, version), "publishing")
        found = await within(60.0, engine.fetch.call_one(version), "fetching")
        tell(version=version, same=found == fingerprints(make_state_dict(version)))
    await store.close()


async def lose(launcher: Launcher) -> None:
    """Tell of every death on the second host."""
    launcher.spawn("zero", Adder, host=0)
    for name in ("one", "two"):
        launcher.spawn(name, Adder, host=1, on_death=lambda said: tell(said=said))
    for name in ("zero", "one", "two"):
        await launcher.start(name)
        tell(name=name, pid=launcher[name].far[0][1], log=str(launcher[name].log))
    tell(ready=True)
    await told()
    try:
        launcher.spawn("three", Adder, host=1, environ={"CUDA_VISIBLE_DEVICES": "0"})
    except ForgeError as error:
        tell(refused=str(error))
    four = launcher.spawn("four", Adder, host=1)
    await launcher.start("four")
    tell(four=await within(60.0, four.add.call_one(1, 3), "four"), places=launcher["four"].host_of_rank)
    await launcher.stop("four", seconds=0.0)
    tell(stopped="four")
    await told()


async def wait(launcher: Launcher) -> None:
    workers = await start_workers(launcher)
    for name, worker in workers.items():
        tell(name=name, pid=await within(60.0, worker.pid.call_one(), name))
    tell(ready=True)
    try:
        await launcher.guard(within(600.0, workers["worker0"].hold.call_one(), "the first worker"))
    except ForgeError as error:
        tell(error=str(error))


ENDINGS = {"work": work, "team": team, "weights": weights, "lose": lose, "wait": wait}


async def main(ending: str, logs: Path, kind: str, workers: str) -> None:
    settings = HostSettings(
        kind=cast(Literal["processes", "workers"], kind),
        hosts=2,
        workers=workers,
        silence_seconds=SILENCE_S,
        lease_seconds=LEASE_S if ending == "wait" else 60.0,
    )
    async with Launcher(logs, hosts=Hosts(settings, connect_seconds=30.0)) as launcher:
        await ENDINGS[ending](launcher)
    tell(closed=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
