"""Several processes of one actor: they find each other, are called together, and none is waited for in vain."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import ServiceError, UserError

pytest.importorskip("monarch")

from runtime_actors import Team, Worker

from forge_env.runtime.launcher import Launcher, within
from forge_env.runtime.process.ranks import AllRanks, RankRendezvous
from tests.helpers.waiting import wait_until

DEADLINE_S = 60.0  # for anything that must happen at all, on a busy machine


async def start_two(launcher: Launcher, actor_class: type) -> tuple[Any, list[int]]:
    """Two ranks; returns Monarch's handle of them, and their process ids."""
    actor = launcher.spawn("team", actor_class, procs=2)
    await launcher.start("team", seconds=3 * DEADLINE_S)
    return actor, list((await within(DEADLINE_S, actor.pid.call(), "the team")).values())


async def test_calls_reach_all_ranks_in_order_until_one_is_killed_inside_a_collective(tmp_path: Path) -> None:
    logs = [tmp_path / "team.log", tmp_path / "team-1.log"]
    async with Launcher(tmp_path) as launcher:
        actor, pids = await start_two(launcher, Team)
        team = AllRanks(actor)
        # Made at once, awaited in any order: were two ranks to see them in different orders, the sums would mix.
        calls = [team.sum.call_one(float(i)) for i in range(20)]
        answers = await within(DEADLINE_S, asyncio.gather(*reversed(calls)), "the team")
        assert max(answers, key=len) == [3.0 * i for i in range(20)]
        assert await within(DEADLINE_S, team.sum.call(1.0), "the team") == [*(3.0 * i for i in range(20)), 3.0]
        places = await within(DEADLINE_S, actor.places.call(), "the team")
        assert list(places.values()) == [(0, "0", "2"), (1, "1", "2")]
        assert [Path(f"/proc/{pid}/fd/1").readlink() for pid in pids] == logs

        # Rank 1 is stopped first, so that rank 0 is surely inside of the collective, waiting for it.
        os.kill(pids[1], signal.SIGSTOP)
        work = asyncio.ensure_future(launcher.guard(within(10 * DEADLINE_S, team.sum.call_one(1.0), "the team")))
        assert await within(DEADLINE_S, actor.slice(procs=0).add.call_one(1, 1), "rank 0") == 2
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(
            ServiceError,
            match=rf"^the team process of rank 1 died of SIGKILL \(.*\); the end of its log is in {logs[1]}$",
        ):
            await asyncio.wait_for(work, DEADLINE_S)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_what_befalls_one_rank_is_raised_while_others_never_answer(launcher: Launcher) -> None:
    """The rank that is left often notices a death first, with a sentence that names no process."""
    actor, pids = await start_two(launcher, Worker)
    with pytest.raises(ServiceError, match=r"^the team did not answer within 0\.05 s$"):
        await AllRanks(actor).deadline(0.05, "the team").call_one(Worker.hold, failing_rank=-1)
    call = AllRanks(actor).hold.call_one(failing_rank=1)
    with pytest.raises(UserError, match="^rank 1 cannot take part$"):
        await asyncio.wait_for(launcher.guard(within(10 * DEADLINE_S, call, "the team")), DEADLINE_S)

    async def notice() -> None:
        pidfd = os.pidfd_open(pids[1])
        os.kill(pids[1], signal.SIGKILL)
        assert select.select([pidfd], [], [], DEADLINE_S)[0]  # it has ended, and the event loop does not know it yet
        os.close(pidfd)
        raise ServiceError("the connection was closed by peer")

    with pytest.raises(ServiceError, match="^the team process of rank 1 died"):
        await launcher.guard(notice())


def test_a_meeting_point_listens_to_this_machine_only_and_goes_without_a_trace() -> None:
    point = RankRendezvous(2)
    place = f"0100007F:{int(point.environ(1)['MASTER_PORT']):04X}"
    assert listeners(place) == [place]
    del point
    wait_until(lambda: not listeners(place), "torch closes it")


def listeners(place: str) -> list[str]:
    """Addresses of this machine where somebody listens to the port of `place`."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[3] == "0A" and line[1][-4:] == place[-4:]]  # 0A: it listens
