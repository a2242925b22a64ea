"""external: a program that speaks OpenAI's API, run once per episode; the model behind the API is the agent.

    make("external", command="python my_agent.py")
    make("external", command="python my_agent.py {prompt}", tasks="math")
    make("external", command="./agent.sh", data="tasks.jsonl", reward="grade.py:grade")

A request of the program is the observation, and the agent's action is the response. So the program decides what the
model reads, which tools it has, and how many turns there are. Recording, training and measuring are the same as in any
other environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from envs.external.conversations import ProgramConversation, ProgramConversations
from envs.external.gateway import MODEL, Gateway
from envs.external.program import Program, command_of, how_it_ended, new_folder
from envs.external.requests import RequestRefused
from envs.external.responses import ProgramReply
from envs.external.scoring import Result, read_result
from envs.external.session import PendingRequest, ProgramSession
from envs.external.setup import Setup
from envs.external.tasks import make_tasks
from forge_env.core.env import Env, StepResult
from forge_env.core.errors import EnvError
from forge_env.core.protocols import NextTurn
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task
from forge_env.utils.deadlines import Deadline, queued

SHOWN = 4000
"""Characters of a program's output that are kept with the episode."""
_TASK, _PROMPT, _RESULT = "task.json", "prompt.txt", "result.json"
LAST_WORDS_SECONDS = 1.0
"""How long a program may go on after the response that the episode is over, to print its results and to end."""
_MARGIN = 0.9  # share of a step's limit after which a program is ended, before the rollout ends the step


class External(Env):
    """A program of yours, with the model behind an OpenAI-compatible endpoint."""

    shared: ClassVar = {"setup": "envs.external.setup:open_setup"}
    time_spent_by = "model"
    """Time between two requests counts as the model's, since its answers decide what the program does."""

    setup: Setup

    def __init__(self) -> None:
        if not hasattr(self, "setup"):
            raise EnvError("External is made by its factory, which opens its gateway: forge_env.make('external')")
        self._session: ProgramSession | None = None
        self._program: Program | None = None
        self._pending: PendingRequest | None = None
        self._record: _ProgramRecord | None = None

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
    ) -> Sequence[Task]:
        """Return numbered tasks, those of a file, or those of another environment.

        Args:
            split: "train" or "test"; of `data` also "all".
            count: how many.
            seed: which ones, and in which order.
            command: the program, see `envs.external.setup.open_setup`; that it exists is checked here.
            tasks: the name of an environment, which then scores the program's answer as well.
            data: a file of JSON lines, each with a "prompt", and a "target" and "metadata" where there are any.

        Raises:
            UserError: see `envs.external.tasks.make_tasks`; and when there is no command, or no such program.
        """
        command_of(command)
        return make_tasks(split, count=count, seed=seed, tasks=tasks, data=data)

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
        self._is_full = False
        self._messages: list[Message] = []
        self._record = None
        self._session = self.setup.gateway.open()
        self._program = await self._start(self._session, seed or 0)
        self._record = _ProgramRecord(self._program, self._session, self.setup.gateway)
        if self._program.listener is not None:
            await self.setup.gateway.serve(self._session, self._program.listener)
        try:
            await self._wait()
        except TimeoutError:
            silent = f"the program {self._record.silence} for {self._wait_seconds:g} s"
            raise EnvError(silent + self._record.failure_details()) from None
        if self._pending is None:
            code = await self._program.ended()
            raise EnvError(
                f"the program {how_it_ended(code)} and {self._record.silence}{self._record.failure_details()}"
            )
        return self._observe(self._pending)

    async def step(self, action: Action) -> StepResult:
        if self._session is None or self._pending is None:
            raise EnvError("External.step was called before reset or after the end: reset starts an episode")
        pending, conversation = self._pending, self._conversation
        reply = ProgramReply.of(action, pending.request, turn=self._turns)
        self._turns += 1
        self._conversations.answered(conversation, pending.request, reply.message)
        self._messages = [*pending.request.messages, reply.message]
        self._last, self._is_full = (pending, action), False
        pending.reply.set_result(reply)
        return await self._next_observation()

    async def on_limit(self, limit: str, reason: str = "") -> StepResult | None:
        """Refuse a prompt that is too long, which the program may shorten, or close the session."""
        if self._session is None or self._program is None or self._record is None:
            return None
        if limit == "max_tokens" and self._pending is not None:
            self._is_full = True
            self._conversations.refused(self._conversation)
            self._session.refuse(self._pending, _too_long(reason or f"it has {self._limits.max_tokens} tokens"))
            return await self._next_observation()
        self._record.note = _ended_by(limit, self._limits)
        waited_for = self._session.has_waiting_request
        self._session.close(self._record.note, limit)
        if waited_for:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._program.ended()
        return None

    def final_info(self) -> Mapping[str, Any]:
        """Return what the program printed, and its refused requests; also for an episode that failed."""
        return {} if self._record is None else self._record.info()

    async def close(self) -> None:
        session, program = self._session, self._program
        self._session = self._program = self._pending = None
        try:
            if program is not None:
                await program.close()
        finally:
            if session is not None:
                self.setup.gateway.close(session)

    @property
    def _wait_seconds(self) -> float:
        return _MARGIN * self._limits.step_seconds

    async def _start(self, session: ProgramSession, seed: int) -> Program:
        folder = new_folder()
        try:
            prompt = self._write_task(folder, seed)
            return await Program.start(
                [word.replace("{prompt}", prompt) for word in self.setup.command],
                folder=folder,
                variables=self._variables(session, folder, seed),
                cwd=self.setup.cwd,
                stdin=folder / _PROMPT,
                sandbox_port=self.setup.gateway.port if self.setup.sandbox else None,
            )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise EnvError(f"the program cannot be started: {error}") from error
            raise

    def _write_task(self, folder: Path, seed: int) -> str:
        """Write the task without its target for the program, and return the text of the prompt."""
        prompt = next((m["content"] for m in reversed(self._task.prompt) if m["role"] == "user"), "")
        task = {"id": self._task.id, "messages": self._task.prompt, "metadata": dict(self._task.metadata), "seed": seed}
        (folder / _TASK).write_text(json.dumps(task, default=repr), encoding="utf-8")
        (folder / _PROMPT).write_text(prompt, encoding="utf-8", errors="replace")
        return prompt

    def _variables(self, session: ProgramSession, folder: Path, seed: int) -> dict[str, str]:
        base_url = self.setup.gateway.base_url
        not_proxied = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost", self.setup.host]))
        return {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": session.token,
            "OPENAI_MODEL": MODEL,
            "FORGE_ENV_TASK": str(folder / _TASK),
            "FORGE_ENV_RESULT": str(folder / _RESULT),
            "FORGE_ENV_SEED": str(seed),
            "TMPDIR": str(folder),
            # A program in Python that is killed must have written what it printed.
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": not_proxied,
            "no_proxy": not_proxied,
        }

    async def _wait(self) -> None:
        """Wait for the next request of the program; None is pending when it has ended."""
        assert self._session is not None and self._program is not None
        self._pending = None
        asking = asyncio.create_task(self._session.next())
        ending = asyncio.create_task(self._program.ended())
        try:
            done, _ = await asyncio.wait(
                {asking, ending}, timeout=self._wait_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise TimeoutError
            if not ending.done():
                self._pending = asking.result()
        finally:
            for task in (asking, ending):
                task.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)

    async def _next_observation(self) -> StepResult:
        """Wait for the next request of the program, or for its end."""
        assert self._record is not None
        try:
            await self._wait()
        except TimeoutError:
            nothing = f"the program did nothing that could be seen for {self._wait_seconds:g} s, and was ended"
            if self._last is None:
                raise EnvError(nothing + self._record.failure_details()) from None
            self._record.note = f"{_ended_by('step_seconds', self._limits)}: {nothing}"
            return (), 0.0, False, True, {**self._record.info(), "ended_by": "step_seconds"}
        if self._pending is not None:
            observation, info = self._observe(self._pending)
            return observation, 0.0, False, False, info
        return await self._end()

    def _observe(self, pending: PendingRequest) -> tuple[Sequence[Message], dict[str, Any]]:
        request = pending.request
        self._conversation: ProgramConversation
        self._conversation, observation = self._conversations.place(request)
        self.tools = self._conversation.tools
        return observation, {
            "next": NextTurn(
                context=self._conversation.number,
                max_tokens=request.max_tokens,
                stop=request.stop,
                prompt=request.prompt,
            )
        }

    async def _end(self) -> StepResult:
        """After the end of the program: check that all of it is recorded, and score it."""
        assert self._session is not None and self._program is not None and self._record is not None
        code = await self._program.ended()
        if missing := self._session.missing():
            raise EnvError(f"{missing}: the record is not complete, and gets no reward{self._record.failure_details()}")
        if code and not self.setup.scores_failures and self._is_full and self._last is not None:
            # The program failed on a full context. The model has filled it as well, so this is no fault of the program.
            self._record.note = f"{_ended_by('max_tokens', self._limits)}: the program {how_it_ended(code)} on that"
            return (), 0.0, False, True, {**self._record.info(), "ended_by": "max_tokens"}
        if code and not self.setup.scores_failures:
            raise EnvError(f"the program {how_it_ended(code)}{self._record.failure_details()}")
        last_words = self._messages[-1]["content"] if self._messages else ""
        result = read_result(self._program.folder / _RESULT, self._program.tail("stdout"), last_words)
        if code:
            result = replace(result, reward=0.0)  # the reward that a program gives itself counts only if it succeeded
        reward, parts = await self._score(result)
        info: dict[str, Any] = {**self._record.info(), "rewards": parts}
        if self._last is not None and _was_cut_by_program(*self._last):
            info["outcome"] = Outcome.SCORED
        return (), reward, True, False, info

    async def _score(self, result: Result) -> tuple[float, dict[str, float]]:
        """Score with a separate deadline, while the deadlines of the step and the episode are suspended."""
        deadline, seed = Deadline(self._limits.scoring_seconds), self._seed or 0
        scoring = self.setup.scorer.score(self._task, self._messages, result, seed=seed, limits=self._limits)
        try:
            async with queued():
                return await deadline.run(scoring)
        except TimeoutError:
            if not deadline.expired:
                raise
            raise EnvError(f"scoring took longer than {self._limits.scoring_seconds:g} s") from None


class _ProgramRecord:
    """What the episode records of a program, also after its end and after the close of its environment."""

    def __init__(self, program: Program, session: ProgramSession, gateway: Gateway) -> None:
        self.note = ""
        """What ended the episode, where the program did not end by itself."""
        self._program = program
        self._session = session
        self._gateway = gateway
        self._unknown_before = gateway.unknown_requests

    @property
    def silence(self) -> str:
        """A clause about a program none of whose requests reached the model."""
        return "was answered nothing" if self._session.refusals.counts else "asked the model nothing"

    def info(self) -> dict[str, Any]:
        """Return the info of the episode, with the last SHOWN characters of both streams."""
        kept: dict[str, Any] = {name: self._program.tail(name)[-SHOWN:] for name in ("stdout", "stderr")}
        if self._program.exit_code is not None:
            kept["exit_code"] = self._program.exit_code
        if self.note:
            kept["note"] = self.note
        refusals = self._session.refusals
        if not refusals.counts:
            return {"program": kept}
        return {"program": {**kept, "refused": refusals.sentences}, "refused_requests": dict(refusals.counts)}

    def failure_details(self) -> str:
        """The end of a sentence about a failure: the refused requests, and the last lines of standard error."""
        unknown = self._gateway.unknown_requests - self._unknown_before
        parts = [str(self._session.refusals)]
        if unknown and not self._session.count:
            parts.append(
                f"{unknown} {'request' if unknown == 1 else 'requests'} without the key of a running program came "
                "to the gateway meanwhile: a program's key is its OPENAI_API_KEY"
            )
        lines = " | ".join(self._program.tail("stderr").split("\n")[-6:]).strip(" |")
        parts.append(f"it wrote: {lines[-600:]}" if lines else "")
        return "".join(f"; {part}" for part in parts if part)


def _ended_by(limit: str, limits: EpisodeLimits) -> str:
    return f"the episode was ended by {limit} ({getattr(limits, limit):g})"


def _too_long(reason: str) -> RequestRefused:
    """The refusal of a prompt that leaves no room for a response, in OpenAI's words, which clients look for."""
    return RequestRefused(
        400,
        f"This model's maximum context length is exceeded: {reason}. Please reduce the length of the messages.",
        code="context_length_exceeded",
        param="messages",
    )


def _was_cut_by_program(pending: PendingRequest, action: Action) -> bool:
    """Whether the last response ended at the `max_tokens` that the program had set."""
    limit, used = pending.request.max_tokens, (action.usage or {}).get("completion_tokens", 0)
    return action.finish_reason == "length" and limit is not None and used >= limit
