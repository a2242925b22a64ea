"""Service: replicas of one actor behind one handle; a replica that dies or hangs is replaced.

In a script, without a trainer::

    async with Launcher():
        policy = await PolicyActor.options(num_replicas=2).as_service(model=path, settings=EngineSettings())
        completion = await policy.route(PolicyActor.generate, prompt_ids, sampling)

`route` calls one replica and `fanout` all of them; see forge_env/runtime/calls/handle.py.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from forge_env.core.errors import ForgeError, MissedDeadline, ReplicaBroken, ServiceError, UserError, nearest
from forge_env.runtime.calls.answers import in_background, quietly, unless_gone, within
from forge_env.runtime.calls.client import Members, ServiceClient, forget_client
from forge_env.runtime.calls.endpoints import endpoint_table
from forge_env.runtime.calls.handle import ServiceHandle, View
from forge_env.runtime.launcher import Launcher, Spawned, open_launcher
from forge_env.runtime.process.ranks import AllRanks
from forge_env.runtime.process.visible_gpus import names_of

A = TypeVar("A")
PING_EVERY_S = 0.5
MOST_DEATHS = 5  # if a service has more deaths within DEATHS_S, it is given up
DEATHS_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How an actor is run. `ForgeActor.options` makes it."""

    procs: int = 1
    """Processes of one replica, each with a rank."""
    num_replicas: int = 1
    with_gpus: bool = False
    """Whether each process has its own GPU. GPUs are counted from 0 for each service, unless `environ` names others."""
    seconds: float = 300.0
    """Deadline of a call to an ordinary endpoint."""
    start_seconds: float = 300.0
    """Deadline of a replica's start."""
    ping_seconds: float = 30.0
    """A replica that does not answer a ping within this time is ended and replaced."""
    environ: Callable[[int], Mapping[str, str]] | None = None
    """Variables for the processes of a replica, by its number."""
    host: Callable[[int], int] | None = None
    """The host of a replica, by its number, if the launcher has hosts; None is the first host."""
    respawn: bool = True
    """Whether a replica that dies is replaced; if not, its death ends what the launcher guards."""

    def __post_init__(self) -> None:
        for name, least in (("procs", 1), ("num_replicas", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}: a service needs at least {least}")
        for name in ("seconds", "start_seconds", "ping_seconds"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}: a deadline is above 0")


@dataclass(slots=True)
class Death:
    """The end of a replica and its replacement; times are seconds of time.monotonic."""

    reason: str
    at: float
    recovered_at: float | None = None


@dataclass(eq=False, kw_only=True)
class Service(ServiceHandle[A]):
    """The replicas: starts, watches, replaces and ends them. Its endpoints are the actor's.

    Args:
        actor_class: a ForgeActor; its `idempotent` names the endpoints that may be called twice.
        name: for people, and of the log files.
        on_ready: awaited with each replica, and each replacement; the replica gets calls directly after it.
    """

    actor_class: type[A]
    arguments: Mapping[str, Any]
    name: str
    options: ServiceOptions = field(default_factory=ServiceOptions)
    on_ready: Callable[[Spawned], Awaitable[None]] | None = None
    launcher: Launcher = field(default_factory=open_launcher)
    deaths: list[Death] = field(default_factory=list)

    def __post_init__(self) -> None:
        table = endpoint_table(self.actor_class)
        self.client: ServiceClient[A] = ServiceClient(self.name, table, seconds=self.options.seconds)
        self._numbers = itertools.count(1)
        self._keepers: dict[int, asyncio.Task[None]] = {}  # by slot: a replica and its replacements share one
        self._background: set[asyncio.Task[None]] = set()
        self.launcher.on_close(self._release)

    def _view(self) -> View[A]:
        return self.client._view()

    @property
    def is_starting(self) -> bool:
        return len(self._keepers) > self.client.up

    async def start(self) -> None:
        """Start all replicas at once, and wait until they are up.

        Raises:
            ServiceError: a replica died, or did not start in time.
            ForgeError: raised by a replica's own start.
        """
        await self.scale(self.options.num_replicas)

    async def scale(self, num_replicas: int) -> None:
        """Start or end replicas until there are `num_replicas`; calls in flight end only on replicas that are ended.

        Raises:
            UserError: fewer than one is asked for.
            ForgeError: see `start`.
        """
        replace(self.options, num_replicas=num_replicas)  # checks it
        slots = sorted(self._keepers)
        for slot in slots[num_replicas:]:
            await self._end(slot)
        free = (slot for slot in itertools.count() if slot not in self._keepers)
        firsts = []
        while len(self._keepers) < num_replicas:
            slot = next(free)
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._keepers[slot] = asyncio.create_task(self._keep(slot, first), name=f"keep {self.name} {slot}")
            firsts.append(first)
        results = await asyncio.gather(*firsts, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def stop(self) -> None:
        await asyncio.gather(*(self._end(slot) for slot in list(self._keepers)))
        self._change({}, "it was stopped", is_over=True)
        forget_client(self.client.id)

    async def _keep(self, slot: int, first: asyncio.Future[None]) -> None:
        """Keep a replica in this slot. At the end the slot is free, and `first` is always done."""
        try:
            await self._refill(slot, first)
        finally:
            if self._keepers.get(slot) is asyncio.current_task():
                del self._keepers[slot]
            if not first.done():
                first.set_exception(ServiceError(f"{self.name} was stopped before it was up"))

    async def _refill(self, slot: int, first: asyncio.Future[None]) -> None:
        death: Death | None = None
        failures = 0
        while True:
            try:
                number, member = await self._begin(slot)
            except Exception as error:
                if not first.done():
                    first.set_exception(error)
                    return
                if not isinstance(error, ForgeError):
                    self.launcher.fail(ServiceError(f"replacing {self.name}: {type(error).__name__}: {error}"))
                    raise
                failures += 1
                is_slow = death is not None and failures > 1 and time.monotonic() - death.at > DEATHS_S
                if not self._may_go_on(str(error), is_hopeless=is_slow):
                    return
                continue
            failures = 0
            if death is not None:
                death.recovered_at = time.monotonic()
                seconds = death.recovered_at - death.at
                self.launcher.say(f"{member.name} is up again after {seconds:.1f} s")
            if not first.done():
                first.set_result(None)
            try:
                reason = await self._watch(member)
            except asyncio.CancelledError:
                self._leave(number, f"this replica of {self.name} was ended")
                if not self.launcher.is_stopping:
                    await self.launcher.stop(member.name)
                raise
            death = Death(reason, time.monotonic())
            self._leave(number, reason)
            in_background(self.launcher.stop(member.name, seconds=0.0), self._background)
            if not self._may_go_on(reason, death):
                return
            self.launcher.say(f"{reason}; another one is started")

    async def _begin(self, slot: int) -> tuple[int, Spawned]:
        options, number = self.options, next(self._numbers)
        name = self.name if options.num_replicas == 1 and slot == 0 else f"{self.name}_{slot}"
        environ = options.environ(slot) if options.environ else self._gpus(slot)
        self.launcher.spawn(
            name,
            self.actor_class,
            procs=options.procs,
            environ=environ,
            on_death=lambda reason: self._leave(number, reason),
            host=options.host(slot) if options.host else 0,
            **self.arguments,
        )
        member = self.launcher[name]
        try:
            await self.launcher.start(name, seconds=options.start_seconds)
            if self.on_ready is not None:
                await self.on_ready(member)
            if member.dead.done():
                raise ServiceError(member.dead.result())
        except BaseException:
            in_background(self.launcher.stop(name, seconds=0.0), self._background)
            raise
        self._change({**self.client.members.handles, number: member.handle}, self.client.members.reason)
        return number, member

    async def _watch(self, member: Spawned) -> str:
        """Wait until the replica is dead or hangs; returns the reason."""
        seconds = self.options.ping_seconds
        while not member.dead.done():
            try:
                await unless_gone(within(seconds, AllRanks(member.actor).ping.call_one(), "the ping"), member.dead)
                await asyncio.wait({member.dead}, timeout=PING_EVERY_S)
            except ReplicaBroken as error:
                return f"the {member.name} process was ended: {error}"
            except MissedDeadline:
                if not member.dead.done():
                    return f"the {member.name} process did not answer a ping within {seconds:g} s, and was ended"
            except ForgeError as error:
                if not member.dead.done():
                    return f"the {member.name} process was ended, for its ping failed: {error}"
        return member.dead.result()

    def _leave(self, number: int, reason: str) -> None:
        handles = dict(self.client.members.handles)
        if handles.pop(number, None) is not None:
            self._change(handles, reason)

    def _may_go_on(self, reason: str, death: Death | None = None, *, is_hopeless: bool = False) -> bool:
        """Whether another replica is tried; if not, the guarded work ends.

        Args:
            reason: why a replica is gone, or did not start.
            death: the death of a replica that was up.
            is_hopeless: no replica has started for too long since the last one was up.
        """
        self.deaths.append(death or Death(reason, time.monotonic()))
        if not self.options.respawn:
            self._give_up(reason)
            return False
        recent = [other for other in self.deaths if time.monotonic() - other.at < DEATHS_S]
        if len(recent) <= MOST_DEATHS and not is_hopeless:
            return True
        cause = f"{self.name} has lost {len(recent)} replicas within {DEATHS_S / 60:g} minutes"
        if is_hopeless:
            cause = f"no {self.name} has started for {DEATHS_S / 60:g} minutes"
        if self.client.up:
            self.launcher.say(f"{reason}; as {cause}, it is not replaced, and {self.client.up} go on")
        else:
            self._give_up(f"{reason}; {cause}")
        return False

    def _give_up(self, reason: str) -> None:
        """End the guarded work, and the calls that wait for a replica."""
        self._change({}, reason, is_over=True)
        self.launcher.fail(ServiceError(reason))

    def _change(self, handles: dict[int, Any], reason: str, *, is_over: bool = False) -> None:
        """Give this process, and all others, the new list of replicas that are up."""
        members = Members(self.client.members.edition + 1, handles, reason, is_over)
        self.client.update(members)
        for actor in self.launcher.actors():
            in_background(quietly(10.0, actor.update_client.call(self.client.id, members)), self._background)

    def _gpus(self, slot: int) -> Mapping[str, str]:
        first = slot * self.options.procs
        numbers = range(first, first + self.options.procs) if self.options.with_gpus else ()
        return {"CUDA_VISIBLE_DEVICES": ",".join(names_of(numbers))}

    async def _end(self, slot: int) -> None:
        keeper = self._keepers.pop(slot)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)

    async def _release(self) -> None:
        """Stop watching and replacing: the launcher is about to end all actors."""
        tasks = [*self._keepers.values(), *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.client.update(Members(self.client.members.edition + 1, {}, "its launcher has ended", is_over=True))
        forget_client(self.client.id)


@dataclass(frozen=True)
class ActorOptions(Generic[A]):
    """An actor with its options, not started yet."""

    actor_class: type[A]
    options: ServiceOptions

    async def as_service(self, *, name: str = "", **arguments: Any) -> Service[A]:
        """Start the replicas in the open launcher, and wait until they are up.

        Args:
            name: for people, and of the log files; the class's name without "Actor" by default.
        """
        name = name or self.actor_class.__name__.removesuffix("Actor").lower()
        service = Service(actor_class=self.actor_class, arguments=arguments, name=name, options=self.options)
        await service.start()
        return service

    async def as_actor(self, *, name: str = "", **arguments: Any) -> Service[A]:
        """Start one actor, which is not replaced: its death ends what the launcher guards, and the calls to it."""
        if self.options.num_replicas != 1:
            raise UserError(f"num_replicas is {self.options.num_replicas}: an actor is one; use .as_service()")
        options = replace(self.options, respawn=False)
        return await ActorOptions(self.actor_class, options).as_service(name=name, **arguments)


def make_options(options: Mapping[str, Any]) -> ServiceOptions:
    for name in options:
        if name not in ServiceOptions.__dataclass_fields__:
            raise UserError(f"a service has no option {name!r}. {nearest(name, ServiceOptions.__dataclass_fields__)}")
    return ServiceOptions(**options)
