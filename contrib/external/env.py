"""external: a program that speaks a model's API, run once per episode; the model behind the API is the agent.

    make("external", command="python my_agent.py")
    make("external", command="python my_agent.py {prompt}", tasks="math")
    make("external", command="./agent.sh", data="tasks.jsonl", reward="grade.py:grade")
    make("external", command="python3 /agent/my_agent.py", files="agent", tasks="harbor:tasks")  # inside its workspace

A request of the program is the observation, and the agent's action is the response. So the program decides what the
model reads, which tools it has, and how many turns there are; requests that come at once are turns at once. Recording,
training and measuring are the same as in any other environment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from contrib.common.http_server import RequestRefused
from contrib.external.concurrent_turns import ConcurrentEnv
from contrib.external.conversations import ProgramConversation, ProgramConversations
from contrib.external.inside import InsideProgram, score_inside, start_in_room, start_inside
from contrib.external.player import Player
from contrib.external.program import command_of
from contrib.external.record import PlayerRecord, ended_by, too_long
from contrib.external.responses import ProgramReply
from contrib.external.rooms import Options, has_workspaces, is_inside, task_factory
from contrib.external.row_began import why_row_began
from contrib.external.sampled import ProgramTurn, TokenLogprob
from contrib.external.session import PendingRequest, ProgramSession, was_cut_by_program
from contrib.external.setup import ProgramSetup, Setup
from contrib.external.start_program import start_program
from contrib.external.tasks import make_tasks
from forge_env.core.env import StepResult, TimeSpentBy, after_reset
from forge_env.core.errors import EnvError
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task
from forge_env.utils.deadlines import Deadline, queued

T = TypeVar("T")
LAST_WORDS_SECONDS = 1.0
"""How long a program may go on after the response that the episode is over, to print its results and to end."""
_MARGIN = 0.9  # share of a step's limit after which a program is ended, before the rollout ends the step


class External(ConcurrentEnv):
    """A program of yours, with the model behind an OpenAI-compatible endpoint."""

    shared: ClassVar = {"setup": "contrib.external.setup:open_setup"}
    time_spent_by: TimeSpentBy = "model"
    """Time between two requests counts as the model's, since its answers decide what the program does."""

    setup: Setup

    def __init__(self) -> None:
        if not hasattr(self, "setup"):
            name = type(self).__name__
            raise EnvError(f"{name} is made by its factory, which opens its gateway: forge_env.make('{name.lower()}')")
        self._session: ProgramSession | None = None
        self._player: Player | None = None
        self._open_requests: dict[int, _Asked] = {}
        """What the model is answering, by the number of its conversation."""
        self._record: PlayerRecord | None = None

    @classmethod
    def tasks(
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        command: str = "",
        tasks: str = "",
        data: str = "",
        image: str = "",
        task_options: Options = "",
    ) -> Sequence[Task]:
        """Numbered tasks, the tasks of a file, or the tasks of another environment.

        Args:
            split: "train" or "test"; of `data` also "all".
            count: how many.
            seed: which ones, and in which order.
            command: the program, see `contrib.external.setup.open_setup`; that it exists is checked here.
            tasks: the name of an environment, which then scores the program's answer as well.
            data: a file of JSON lines, each with a "prompt", and optionally a "target" and "metadata".
            image, task_options: see `open_setup`.
        """
        command_of(command, is_inside=is_inside(tasks, image))
        return make_tasks(split, count=count, seed=seed, tasks=tasks, data=data, image=image, task_options=task_options)

    @classmethod
    def limits(
        cls, *, tasks: str = "", data: str = "", image: str = "", task_options: Options = ""
    ) -> Mapping[str, float]:
        """The limits of the tasks' environment if a program runs in its workspaces."""
        if not has_workspaces(tasks):
            return {}
        return task_factory(tasks, data=data, image=image, task_options=task_options).declared_limits()

    @classmethod
    def effects(cls, *, command: str = "") -> str:
        """Say that an episode runs the program."""
        return f"runs {command!r}"

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        await self.close()
        self.seed(seed)
        self._task: Task = (options or {})["task"]
        self._limits: EpisodeLimits = (options or {}).get("limits") or EpisodeLimits()
        self._conversations = ProgramConversations()
        self._turns = 0
        self._last: tuple[PendingRequest, Action] | None = None
        self._full_at: int | None = None
        self._full_reason = ""
        self._none_asked = asyncio.Event()
        self._messages: list[Message] = []
        self._next_step: Sequence[Message] = ()
        self._verdict: Mapping[str, Any] = {}
        self._record = None
        session = self._session = self.setup.gateway.open()
        player = self._player = await self._begin(session, seed or 0)
        record = self._record = PlayerRecord(player, session, self.setup.gateway)
        await self._present(player)
        try:
            pending = await self._next_request()
        except TimeoutError:
            silent = f"{player.who} {record.silence} for {self._patience}"
            raise self._fault(silent + record.failure_details()) from None
        if pending is None:
            code = await self._exit_code()
            raise self._fault(f"{player.who} {player.ending(code)} and {record.silence}{record.failure_details()}")
        return self._observe(pending)

    async def step(self, action: Action) -> StepResult:
        """Take the answer to the request at hand, for callers that play one turn at a time."""
        after_reset(self, self._session if len(self._open_requests) == 1 else None)
        await self.answer(next(iter(self._open_requests)), action)
        return await self.listen()

    async def answer(self, context: int, action: Action, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Deliver an answer to the program."""
        if self._open_requests[context].pending.request.counts:  # of a caller that answers each request
            await self.refused(context, "nobody counts tokens in this episode: go on without their number")
            return
        pending, conversation = self._open_requests.pop(context)
        reply = ProgramReply.of(action, pending.request, logprobs, turn=self._turns)
        self._turns += 1
        self._conversations.answered(conversation, pending.request, reply.message)
        is_latest = self._last is None or pending.number > self._last[0].number  # whatever the order of the answers
        if is_latest and not conversation.auxiliary:
            self._messages = [*pending.request.messages, reply.message]
            self._last = (pending, action)
        if self._full_at is not None and pending.number > self._full_at:
            self._full_at = None  # the program has gone on after the refusal
        pending.reply.set_result(reply)
        self._note_answered()

    async def no_room(self, context: int, reason: str) -> None:
        """Refuse a prompt that is too long, which the program may shorten."""
        assert self._session is not None
        pending, conversation = self._open_requests.pop(context)
        self._full_at, self._full_reason = self._session.count, reason
        self._conversations.refused(conversation)
        self._session.refuse(pending, too_long(reason or f"it has {self._limits.max_tokens} tokens"))
        self._note_answered()

    async def refused(self, context: int, reason: str) -> None:
        """Refuse a request if the agent cannot give an answer in the form that it asks for."""
        assert self._session is not None
        pending, conversation = self._open_requests.pop(context)
        self._conversations.refused(conversation)
        self._session.refuse(pending, RequestRefused(400, reason, code="unsupported_form"))
        self._note_answered()

    async def counted(self, context: int, tokens: int) -> None:
        """Tell the program how many tokens its prompt has."""
        pending, conversation = self._open_requests.pop(context)
        self._conversations.refused(conversation)
        pending.reply.set_result(ProgramReply.of_count(tokens))
        self._note_answered()

    async def listen(self) -> StepResult:
        """Wait for the next request of the program, or for its end."""
        assert self._record is not None and self._player is not None
        try:
            pending = await self._next_request()
        except TimeoutError:
            return self._silent()
        if pending is None:
            return await self._end()
        observation, info = self._observe(pending)
        return observation, 0.0, False, False, info

    async def on_limit(self, limit: str, reason: str = "") -> StepResult | None:
        """Close the session; or, for callers that play one turn at a time, refuse a prompt that is too long."""
        if self._session is None or self._player is None or self._record is None:
            return None
        if limit == "max_tokens" and len(self._open_requests) == 1:
            await self.no_room(next(iter(self._open_requests)), reason)
            return await self.listen()
        self._record.note = ended_by(limit, self._limits, reason)
        self._tell(outcome="truncated", ended_by=limit, error=self._record.note)
        waited_for = self._session.has_waiting_request
        self._session.close(self._record.note, limit)
        if waited_for:
            with contextlib.suppress(TimeoutError, EnvError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._player.wait_for_end()
        return None

    def final_info(self) -> Mapping[str, Any]:
        """Return what the program printed, and its refused requests; also for an episode that failed."""
        return {} if self._record is None else self._record.info()

    async def close(self) -> None:
        session, player = self._session, self._player
        self._session = self._player = None
        self._open_requests.clear()
        try:
            if player is not None:
                await player.close()
        finally:
            if session is not None:
                self._close_session(session)

    @property
    def _wait_seconds(self) -> float:
        """How long the player may take between two requests."""
        return _MARGIN * self._limits.step_seconds

    @property
    def _patience(self) -> str:
        """The time that the player has used up."""
        return f"{self._wait_seconds:g} s"

    # what depends on who plays the episode

    async def _begin(self, session: ProgramSession, seed: int) -> Player:
        assert isinstance(self.setup, ProgramSetup)
        if self.setup.rooms is not None:
            return await start_inside(self.setup, session, self._task, seed, self._limits)
        return await start_program(self.setup, session, self._task, seed)

    async def _present(self, player: Player) -> None:
        """Let the player come to the gateway."""
        assert self._session is not None
        if player.listener is not None:
            await self.setup.gateway.serve(self._session, player.listener)

    def _silent(self) -> StepResult:
        """End the episode of a player that does nothing."""
        assert self._record is not None and self._player is not None
        nothing = f"{self._player.who} did nothing that could be seen for {self._patience}, and was ended"
        if self._last is None or self.time_spent_by == "service":
            raise EnvError(nothing + self._record.failure_details()) from None
        self._record.note = f"{ended_by('step_seconds', self._limits)}: {nothing}"
        return (), 0.0, False, True, {**self._record.info(), "ended_by": "step_seconds"}

    def _fault(self, why: str) -> EnvError:
        """Return the error that ends the episode."""
        self._tell(outcome="fault", error=why)
        return EnvError(why)

    def _tell(self, **summary: Any) -> None:
        """Tell the player how the episode ends, if it asks for that."""

    def _close_session(self, session: ProgramSession) -> None:
        self.setup.gateway.close(session)

    # what does not

    async def _exit_code(self) -> int:
        assert self._player is not None and self._record is not None
        try:
            return await self._player.wait_for_end()
        except EnvError as error:
            raise self._fault(f"{error}{self._record.failure_details()}") from None

    async def _next_request(self) -> PendingRequest | None:
        """Wait for the next request of the program; None when it has ended."""
        assert self._session is not None and self._player is not None
        asking = asyncio.create_task(self._session.next())
        ending = asyncio.create_task(self._player.wait_for_end())
        silence = asyncio.create_task(self._none_asked.wait())
        try:
            if self._open_requests:
                async with queued():
                    await asyncio.wait({asking, ending, silence}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and not ending.done():
                await self._wait_for_player({asking, ending})
            if ending.done():
                return None
            if not asking.done():
                raise TimeoutError
            return asking.result()
        finally:
            for task in (asking, ending, silence):
                task.cancel()
            await asyncio.gather(asking, ending, silence, return_exceptions=True)

    async def _wait_for_player(self, done: set[asyncio.Task[Any]]) -> None:
        """Wait until one of these is done, for as long as the player may take."""
        await asyncio.wait(done, timeout=self._wait_seconds, return_when=asyncio.FIRST_COMPLETED)

    def _observe(self, pending: PendingRequest) -> tuple[Sequence[Message], dict[str, Any]]:
        request = pending.request
        conversation, observation = self._conversations.place(request)
        began = None
        if not conversation.turns:
            began = why_row_began(request, conversation.asked or (), self._conversations.before(conversation))
        self._open_requests[conversation.number] = _Asked(pending, conversation)
        self._none_asked.clear()
        self.tools = conversation.tools
        return observation, {
            "next": ProgramTurn(
                context=conversation.number,
                max_tokens=request.max_tokens,
                stop=request.stop,
                prompt=request.prompt,
                constraint=request.constraint,
                logprobs=request.logprobs,
                count=request.counts,
                began=began,
                auxiliary=conversation.auxiliary,
            )
        }

    def _note_answered(self) -> None:
        if not self._open_requests:
            self._none_asked.set()

    async def _end(self) -> StepResult:
        """After the end of the program: check that all of it is recorded, and score it."""
        assert self._session is not None and self._player is not None and self._record is not None
        player, record = self._player, self._record
        code = await self._exit_code()
        if missing := self._session.missing(player.who):
            raise self._fault(f"{missing}: the record is not complete, and gets no reward{record.failure_details()}")
        if code and not self.setup.scores_failures and self._full_at is not None and self._last is not None:
            # The program failed on a full context. The model has filled it, too, so the program has no fault.
            record.note = (
                f"{ended_by('max_tokens', self._limits, self._full_reason)}: {player.who} {player.ending(code)} on that"
            )
            return (), 0.0, False, True, {**record.info(), "ended_by": "max_tokens"}
        if code and not self.setup.scores_failures:
            raise EnvError(f"{player.who} {player.ending(code)}{record.failure_details()}")
        try:
            reward, parts = await self._reward(player, code)
        except EnvError as error:
            self._tell(outcome="fault", error=str(error))
            raise
        if self._next_step:
            return await self._go_on()
        self._tell(outcome="scored", reward=reward, rewards=parts)
        info: dict[str, Any] = {**record.info(), **self._verdict, "rewards": parts}
        if self._last is not None and was_cut_by_program(*self._last):
            info["outcome"] = Outcome.SCORED
        return (), reward, True, False, info

    async def _reward(self, player: Player, code: int) -> tuple[float, dict[str, float]]:
        """Return the reward and its breakdown, of a player that has ended with this exit code."""
        result = player.result(self._messages[-1]["content"] if self._messages else "")
        if isinstance(player, InsideProgram) and player.room.env is not None and self.setup.scorer.part is None:
            score = await self._in_time(score_inside(player.room, result.answer))
            reward, parts, self._verdict, self._next_step = score
            return reward, parts
        if code:
            result = replace(result, reward=0.0)  # the reward that a program gives itself counts only if it succeeded
        seed, limits = self._seed or 0, self._limits
        scoring = self.setup.scorer.score(self._task, self._messages, result, seed=seed, limits=limits)
        return await self._in_time(scoring)

    async def _go_on(self) -> StepResult:
        """Start the program again in its workspace, for the next step of a task that has several."""
        assert isinstance(self._player, InsideProgram) and isinstance(self.setup, ProgramSetup)
        assert self._session is not None
        messages, self._next_step = self._next_step, ()
        room, seed = self._player.room, self._seed or 0
        async with queued():
            player = await start_in_room(self.setup, self._session, room, self._task, messages, seed)
        self._player, self._record = player, PlayerRecord(player, self._session, self.setup.gateway)
        await self._present(player)
        return await self.listen()

    async def _in_time(self, scoring: Awaitable[T]) -> T:
        """Score with a separate deadline, while the deadlines of the step and the episode are suspended."""
        deadline = Deadline(self._limits.scoring_seconds)
        try:
            async with queued():
                return await deadline.run(scoring)
        except TimeoutError:
            if not deadline.has_expired:
                raise
            raise EnvError(f"scoring took longer than {self._limits.scoring_seconds:g} s") from None


class _Asked(NamedTuple):
    """A request that the model is answering."""

    pending: PendingRequest
    conversation: ProgramConversation
