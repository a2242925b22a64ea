"""Services with real processes: routing, sessions, deaths by SIGKILL, hangs by SIGSTOP, scaling, and what is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from forge_env.core.errors import ForgeError, PolicyError, ReplicaDied, ServiceError, UserError

pytest.importorskip("monarch")

from runtime_actors import Caller, Counting, Team

from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.calls.endpoints import endpoint_table
from forge_env.runtime.launcher import Launcher, Spawned
from forge_env.runtime.process.children import processes_with
from forge_env.runtime.service import Service
from tests.helpers.waiting import is_stopped, until

DEADLINE_S = 60.0


async def pids(service: Service[Counting]) -> list[int]:
    return sorted(await service.fanout(Counting.pid))


async def test_calls_go_to_the_replica_with_the_fewest_in_flight_or_of_their_session(launcher: Launcher) -> None:
    service = await Counting.options(num_replicas=2).as_service()
    both = await pids(service)
    assert len(set(both)) == 2 and os.getpid() not in both
    held = [asyncio.create_task(service.route(Counting.hold)) for _ in range(3)]
    await until(lambda: sum(member.calls for member in service.client.replicas.values()) == 3, "three calls")
    # One replica has two calls in flight and one has one: the next call goes to the one with one.
    busy = {number: member.calls for number, member in service.client.replicas.items()}
    assert sorted(busy.values()) == [1, 2]
    quiet = await service.client.pick("")
    assert quiet.calls == 1
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    answers = await asyncio.gather(*(service.route(Counting.pid) for _ in range(20)))
    assert set(Counter(answers)) == set(both)
    # A session stays with its replica.
    homes = {name: await service.session(name).route(Counting.pid) for name in ("one", "two")}
    for name, home in homes.items():
        assert {await service.session(name).route(Counting.pid) for _ in range(5)} == {home}


async def test_a_group_stays_together_unless_its_replica_is_much_busier(launcher: Launcher) -> None:
    service = await Counting.options(num_replicas=2).as_service(name="groups")
    held = [asyncio.create_task(service.session(f"a/{i}").route(Counting.hold)) for i in range(8)]
    replicas = service.client.replicas
    await until(lambda: sum(member.calls for member in replicas.values()) == 8, "eight calls")
    assert sorted(member.calls for member in replicas.values()) == [0, 8]
    other = await service.client.pick("b/0")
    assert other.calls == 0 and await service.client.pick("b/1") is other, "the next group goes elsewhere"
    held += [asyncio.create_task(service.session(f"a/{i}").route(Counting.hold)) for i in range(8, 40)]
    await until(lambda: sum(member.calls for member in replicas.values()) == 40, "forty calls")
    assert sorted(member.calls for member in replicas.values()) == [17, 23], "and is filled up, too"
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_a_call_survives_the_death_of_its_replica_if_it_is_idempotent_and_is_not_repeated_otherwise(
    launcher: Launcher, tmp_path: Path
) -> None:
    service = await Counting.options(num_replicas=2).as_service()
    marks, others = tmp_path / "marks", tmp_path / "others"
    marks.mkdir()
    others.mkdir()
    call = asyncio.create_task(service.route(Counting.answer_when, str(tmp_path / "go"), str(marks)))
    await until(lambda: list(marks.iterdir()), "the call's arrival")
    first = int(next(marks.iterdir()).name)
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(list(marks.iterdir())) == 2, "the second try")
    (tmp_path / "go").touch()
    assert await call != first
    assert service.client.retries == 1
    await until(lambda: service.client.up == 2, "a replacement")
    assert first not in await pids(service) and len(set(await pids(service))) == 2
    assert [death.recovered_at is not None for death in service.deaths] == [True]

    call = asyncio.create_task(service.route(Counting.mark_and_hold, str(others)))
    await until(lambda: list(others.iterdir()), "the call's arrival")
    os.kill(int(next(others.iterdir()).name), signal.SIGKILL)
    with pytest.raises(
        ReplicaDied, match=r"the counting_\d process died of SIGKILL \(signal 9\); the end of .*counting_\d\.log"
    ):
        await call
    assert len(list(others.iterdir())) == 1


async def test_the_only_replica_is_replaced_and_waiting_calls_are_answered_also_those_of_other_processes(
    launcher: Launcher,
) -> None:
    ready = []

    async def on_ready(replica: Spawned) -> None:
        ready.append(await replica.call_one(Counting.add, 1, 2))

    service = Service(actor_class=Counting, arguments={}, name="alone", on_ready=on_ready)
    await service.start()
    caller = launcher.spawn("caller", Caller, client=service.client)
    await launcher.start("caller")
    (first,) = await pids(service)
    assert await caller.ask.call_one() == first
    os.kill(first, signal.SIGKILL)
    await until(lambda: service.client.up == 0, "the death")
    async with asyncio.timeout(DEADLINE_S):
        second = await service.route(Counting.pid)
        assert await caller.ask.call_one() == second != first
    assert ready == [3, 3]


async def test_a_replica_that_is_being_replaced_ends_with_the_launcher(tmp_path: Path) -> None:
    async with Launcher(tmp_path / "logs") as launcher:
        service = await Counting.options().as_service(name="late")
        mark = f"TMPDIR={launcher._temp}"
        (first,) = await pids(service)
        os.kill(first, signal.SIGKILL)
        await until(lambda: bool({*processes_with(mark)} - {first}), "the next one begins")
    assert processes_with(mark) == [] and not Path(launcher._temp).exists()


@pytest.mark.usefixtures("no_grace")
async def test_a_replica_that_hangs_is_broken_or_fails_its_ping_is_replaced(launcher: Launcher) -> None:
    service = await Counting.options(ping_seconds=2.0).as_service()
    (first,) = await pids(service)
    os.kill(first, signal.SIGSTOP)
    await until(lambda: is_stopped(first), "all threads stop")
    assert (second := await service.route(Counting.pid)) != first
    await until(lambda: not Path(f"/proc/{first}").exists(), "it is not left behind, stopped")
    # It breaks during a call that may be made again: the caller sees nothing of it.
    assert await service.route(Counting.break_down, second) != second
    await service.route(Counting.fail_pings)
    await until(lambda: len(service.deaths) == 3, "the death")
    assert [death.reason for death in service.deaths] == [
        "the counting process did not answer a ping within 2 s, and was ended",
        "the counting process was ended: it has no more numbers",
        "the counting process was ended, for its ping failed: the ping failed: ValueError: 7 is not prime",
    ]


async def test_a_call_that_ends_every_replica_is_given_up(launcher: Launcher) -> None:
    service = await Counting.options(num_replicas=2).as_service()
    with pytest.raises(ReplicaDied, match=r"^counting.die lost 3 replicas: the counting_\d process died"):
        await service.route(Counting.die)
    assert service.client.retries == 2
    await until(lambda: service.client.up == 2, "the replacements")
    assert len(service.deaths) == 3 and len(set(await pids(service))) == 2


async def test_a_long_call_ends_with_its_caller(launcher: Launcher, tmp_path: Path) -> None:
    """Cancelled, out of time, or dead: the work ends in the actor, which goes on."""
    service = await Counting.options(seconds=0.001).as_service()  # a deadline that long calls do not have
    caller = launcher.spawn("caller", Caller, client=service.client)
    await launcher.start("caller")

    async def marks(name: str) -> Path:
        folder = tmp_path / name
        await asyncio.to_thread(folder.mkdir)
        return folder

    cancelled, orphaned = [await marks(name) for name in ("cancelled", "orphaned")]
    call = asyncio.create_task(service.route(Counting.work, str(cancelled)))
    await until((cancelled / "begun").exists, "the work")
    call.cancel()
    await until((cancelled / "ended").exists, "the end of what was cancelled")
    for seconds in (0.2, 2.0, 20.0):  # on a busy machine, the work may not have begun by the first deadline
        late = await marks(f"late {seconds:g}")
        with pytest.raises(ServiceError, match=f"counting.work did not answer within {seconds:g} s"):
            await service.deadline(seconds).route(Counting.work, str(late))
        if (late / "begun").exists():
            break
    await until((late / "ended").exists, "the end of what was late")
    asking = asyncio.ensure_future(caller.let_work.call_one(str(orphaned)))
    await until((orphaned / "begun").exists, "the work of the caller")
    os.kill(await caller.pid.call_one(), signal.SIGKILL)
    await until((orphaned / "ended").exists, "the end of what nobody waits for")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await service.deadline(DEADLINE_S).route(Counting.add, 1, 2) == 3


async def test_a_service_that_is_stopped_while_it_starts(launcher: Launcher) -> None:
    """Who waits for its start is told, and so is who waits for a replica."""
    asked = asyncio.Event()

    async def never(replica: Spawned) -> None:
        asked.set()
        await asyncio.Event().wait()

    service = Service(actor_class=Counting, arguments={}, name="slow", on_ready=never)
    starting, calling = asyncio.create_task(service.start()), asyncio.create_task(service.route(Counting.add, 1, 2))
    await asyncio.wait_for(asked.wait(), DEADLINE_S)
    await service.stop()
    with pytest.raises(ServiceError, match="^slow was stopped before it was up$"):
        await asyncio.wait_for(starting, DEADLINE_S)
    with pytest.raises(ServiceError, match="^slow has no replica any more: it was stopped$"):
        await asyncio.wait_for(calling, DEADLINE_S)


async def test_scaling_up_and_down(launcher: Launcher) -> None:
    service = await Counting.options().as_service()
    (first,) = await pids(service)
    await service.scale(3)
    assert first in await pids(service) and len(set(await pids(service))) == 3
    await service.scale(1)
    assert await pids(service) == [first]
    with pytest.raises(UserError, match="num_replicas is 0: a service needs at least 1"):
        await service.scale(0)
    assert await service.call_one(Counting.pid) == first
    assert service.deaths == []


@pytest.mark.usefixtures("no_grace")
async def test_both_forms_of_a_call_mean_the_same_and_errors_arrive_as_themselves(launcher: Launcher) -> None:
    service = await Counting.options(num_replicas=2).as_service()
    assert await service.add.route(1, b=2) == await service.route(Counting.add, 1, b=2) == 3
    assert set(await service.pid.fanout()) == set(await service.fanout(ForgeActor.pid)) and service.client.up == 2
    assert await service.session("one").pid.route() == await service.session("one").route(Counting.pid)
    assert await service.client.deadline(DEADLINE_S).add.route(1, 2) == 3
    for way in (service.route, service.fanout):
        with pytest.raises(PolicyError, match="^just this$"):
            await way(Counting.fail, "PolicyError", "just this")
    with pytest.raises(ServiceError, match=r"counting.fail failed: ValueError: 7 is not prime"):
        await service.route(Counting.fail, "ValueError", "7 is not prime")
    with pytest.raises(ServiceError, match=r"counting.hold did not answer within 0.2 s"):
        await service.deadline(0.2).route(Counting.hold)
    with pytest.raises(UserError, match="counting has 2 replicas: call add with .route"):
        await service.call_one(Counting.add, 1, 2)


async def test_a_service_that_cannot_start_says_why(launcher: Launcher) -> None:
    with pytest.raises(UserError, match="^cannot start: no weights in /nowhere$"):
        await Counting.options(num_replicas=2).as_service(failure="UserError")
    with pytest.raises(ServiceError, match="the counting process ended with exit code 3"):
        await Counting.options().as_service(failure="exit")


async def test_a_service_that_keeps_dying_ends_what_is_guarded(launcher: Launcher) -> None:
    service = await Counting.options().as_service()

    async def kill_again_and_again() -> None:
        while True:
            pid = await service.route(Counting.pid)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not service.client.up, "the death")

    with pytest.raises(ServiceError, match=r"the counting process died .*; .* has lost 6 replicas within 10 minutes"):
        await launcher.guard(kill_again_and_again())


async def test_the_death_of_an_actor_ends_what_is_guarded(launcher: Launcher) -> None:
    actor = await Counting.options().as_actor(name="single")
    os.kill(await actor.call_one(Counting.pid), signal.SIGKILL)
    with pytest.raises(ServiceError, match="the single process died"):
        await launcher.guard(actor.call_one(Counting.hold))
    await until(lambda: not actor.is_starting, "a place that is free, for nobody will fill it")
    with pytest.raises(ServiceError, match="single has no replica any more: the single process died"):
        await actor.route(Counting.add, 1, 2)


async def test_a_name_that_is_no_endpoint_is_an_error_before_the_call(launcher: Launcher) -> None:
    service = Service(actor_class=Counting, arguments={}, name="counting")  # not started: a call would wait for ever
    names = ", ".join(sorted(endpoint_table(Counting).names))
    for handle in (service, service.client, service.session("one"), service.deadline(5.0)):
        with pytest.raises(
            UserError, match=f"^Counting has no endpoint 'brake_down'. Did you mean break_down. Avail.*{names}"
        ):
            handle.brake_down  # noqa: B018
        assert not hasattr(handle, "brake_down") and hasattr(handle, "break_down")
        with pytest.raises(
            ForgeError, match=r"^Team.sum is no endpoint of Counting: name one of its class, as Counting\.add"
        ):
            handle.route(Team.sum, 1.0)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="^'pid' is no endpoint of Counting"):
            handle.fanout("pid")  # type: ignore[arg-type]
        with pytest.raises(UserError, match="is no endpoint of Counting"):
            handle.call_one(Counting.on_ping)  # type: ignore[arg-type]


def test_idempotent_names_endpoints() -> None:
    class Mistaken(Counting):
        idempotent = frozenset({"pid", "ad"})

    with pytest.raises(UserError, match="^Mistaken.idempotent has 'ad', which is no endpoint. Did you mean add?"):
        endpoint_table(Mistaken)


async def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="a service has no option 'replicas'. Did you mean num_replicas?"):
        Counting.options(replicas=2)
    with pytest.raises(UserError, match="num_replicas is 0: a service needs at least 1"):
        Counting.options(num_replicas=0)
    with pytest.raises(UserError, match="num_replicas is 2: an actor is one; use .as_service"):
        await Counting.options(num_replicas=2).as_actor()
    with pytest.raises(UserError, match="there is no open Launcher"):
        await Counting.options().as_service()
