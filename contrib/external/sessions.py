"""sessions: as external, for agents that are not started here; they take the episodes over HTTP, and finish them.

    make("sessions", listen="127.0.0.1:8000", tasks="math")
    make("sessions", listen="0.0.0.0:8000", data="tasks.jsonl", reward="grade.py:grade")

An episode offers its session at the desk of the server, and waits until an agent takes it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from contrib.common.http_server import MAX_REQUEST_BYTES, open_server
from contrib.common.server_settings import TOKEN_VARIABLE, ServeSettings, read_token
from contrib.external.env import External
from contrib.external.gateway import Gateway
from contrib.external.player import Player
from contrib.external.served.app import ServedApp
from contrib.external.served.desk import Desk
from contrib.external.session import ProgramSession
from contrib.external.setup import Setup, open_scorer
from contrib.external.tasks import make_tasks
from contrib.external.told import RULES, read_rules
from forge_env.core.env import StepResult, TimeSpentBy
from forge_env.core.errors import EnvError, UserError
from forge_env.core.types import Task
from forge_env.utils.deadlines import queued


class Sessions(External):
    """Agents that run elsewhere. Each takes an episode, asks its model, and finishes it."""

    shared: ClassVar = {"setup": "contrib.external.sessions:open_served"}
    one_process: ClassVar = True
    time_spent_by: TimeSpentBy = "service"
    """Nobody knows what an agent elsewhere spends its time on: an episode that it does not finish has no reward."""

    @classmethod
    def tasks(  # type: ignore[override]
        cls, split: str = "train", *, count: int, seed: int = 0, listen: str = "", tasks: str = "", data: str = ""
    ) -> Sequence[Task]:
        """Return tasks as `External.tasks` does. `listen` is checked here."""
        address_of(listen)
        return make_tasks(split, count=count, seed=seed, tasks=tasks, data=data)

    @classmethod
    def limits(cls) -> Mapping[str, float]:  # type: ignore[override]
        return {}

    @classmethod
    def effects(cls, *, listen: str = "") -> str:  # type: ignore[override]
        """Say that an episode waits for an agent."""
        return f"waits for an agent at {listen}"

    async def _begin(self, session: ProgramSession, seed: int) -> Player:
        self._remaining_s = self._limits.episode_seconds
        self._visit = self._desk.visit(session, self._task, seed, self._limits)
        return self._visit

    async def _present(self, player: Player) -> None:
        await self._desk.offer(self._visit)

    async def _wait_for_player(self, done: set[asyncio.Task[Any]]) -> None:
        start = time.monotonic()
        seconds = max(0.0, min(self._wait_seconds, self._remaining_s))
        async with queued():  # the rollout's own deadlines would make another outcome of it
            await asyncio.wait(done, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._remaining_s -= time.monotonic() - start

    @property
    def _wait_seconds(self) -> float:
        return self._limits.step_seconds

    def _silent(self) -> StepResult:
        assert self._record is not None
        done = "worked" if self._remaining_s <= 0 else "sent nothing"
        why = f"the session was not finished: its agent {done} for {self._patience}"
        raise self._fault(why + self._record.failure_details()) from None

    def _fault(self, why: str) -> EnvError:
        self._visit.session.close(f"the episode is over: {why}", "episode_over")
        return super()._fault(why)

    def _tell(self, **summary: Any) -> None:
        self._visit.propose(**summary)

    def _close_session(self, session: ProgramSession) -> None:
        self.setup.gateway.close(session, is_remembered=True)
        self._desk.close(self._visit)

    @property
    def _patience(self) -> str:
        limit = "episode_seconds" if self._remaining_s <= 0 else "step_seconds"
        return f"{getattr(self._limits, limit):g} s ({limit})"

    @property
    def _desk(self) -> Desk:
        assert isinstance(self.setup, ServedSetup)
        return self.setup.desk


@dataclass(frozen=True, kw_only=True)
class ServedSetup(Setup):
    """What an episode of an agent elsewhere needs."""

    desk: Desk

    def enforced(self) -> dict[str, Any]:
        """Return what confines the agents: nothing that is here."""
        return {"missing": ("agents run elsewhere, and are confined there or not",)}


@asynccontextmanager
async def open_served(
    listen: str,
    tasks: str = "",
    reward: str = "",
    reward_range: str = "-1,1",
    token_file: str = "",
    public_url: str = "",
    take_seconds: float = 240.0,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    auxiliary: str = "",
) -> AsyncIterator[ServedSetup]:
    """Open the server that agents take their sessions from.

    Args:
        listen: HOST:PORT. Any other host than 127.0.0.1 opens it to the network, without encryption.
        tasks: the environment that the tasks come from, which then scores the answers.
        reward: a function that scores them, as `forge_env.tool_env.rubric` says; "module:function" or
            "file.py:function".
        reward_range: the least and the largest reward that an agent may give itself, "0,100" for example.
        token_file: the file that holds the token which agents need; else the variable FORGE_ENV_TOKEN has it.
        public_url: the URL under which agents reach this server, for example a proxy's with TLS; else the address
            that they have called.
        take_seconds: how long an episode waits for an agent that takes it; then it is a fault.
        max_request_bytes: the size limit of a request.
        auxiliary: rules that tell which requests are not part of the work, see `contrib.external.told.read_rules`.
    """
    if not 0 < take_seconds < math.inf:
        raise UserError(f"take_seconds is {take_seconds:g}; it is a number of seconds above 0")
    rules = (*read_rules(auxiliary), *RULES)
    token = token_of(token_file)
    async with open_scorer(tasks, reward, reward_range, giver="agent") as scorer:
        desk = Desk(scorer, token=token, public_url=public_url, take_seconds=take_seconds)
        host, port = address_of(listen)
        settings = ServeSettings(token=token, host=host, port=port, max_request_bytes=max_request_bytes)
        gateway = Gateway(max_request_bytes=max_request_bytes, rules=rules)
        async with open_server(ServedApp(desk, gateway), settings.host, settings.port) as server:
            gateway.base_url = f"{server.url}/v1"
            try:
                yield ServedSetup(gateway=gateway, scorer=scorer, desk=desk)
            finally:
                desk.stop()


def address_of(listen: str) -> tuple[str, int]:
    """Split HOST:PORT."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"listen is {listen!r}; it is HOST:PORT, such as 127.0.0.1:8000, or 0.0.0.0:8000 for all addresses of this "
            "machine"
        )
    return host, int(port)


def token_of(token_file: str) -> str:
    """Return the token that agents need, from a file or from the environment."""
    token, is_new = read_token(file=Path(token_file) if token_file else None)
    if is_new:
        raise UserError(
            f"agents elsewhere need a token: set the variable {TOKEN_VARIABLE}, or the option token_file, to a text "
            "that nobody guesses; `openssl rand -hex 32` makes one"
        )
    return token
