"""external: a program that speaks OpenAI's API, run once per episode; the model behind the API is the agent.

    make("external", command="python my_agent.py")
    make("external", command="python my_agent.py {prompt}", tasks="math")
    make("external", command="./agent.sh", data="tasks.jsonl", reward="grade.py:grade")

The program's request is the observation, and the agent's action is the answer to it. So the program decides what the
model reads, which tools it has, and how many turns there are; what is recorded, trained on and measured is the same as
in any other environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from envs.external.contexts import Context, Contexts
from envs.external.gateway import MODEL
from envs.external.program import Program, command_of, how_it_ended, new_folder
from envs.external.replies import Reply
from envs.external.scoring import Result, read_result
from envs.external.session import Asked, Session
from envs.external.setup import Setup
from envs.external.tasks import make_tasks
from forge_env.deadlines import Deadline, queued
from forge_env.env import Env, StepResult
from forge_env.errors import EnvError
from forge_env.protocols import NextTurn
from forge_env.types import Action, EpisodeLimits, Message, Outcome, Task

SHOWN = 4000
"""Characters of a program's output that are kept with the episode."""
_TASK, _PROMPT, _RESULT = "task.json", "prompt.txt", "result.json"
_MARGIN = 0.9  # of the limit of a step: a program that takes longer is cut off before the loop gives up on it


class External(Env):
    """A program of yours, with the model behind an OpenAI-compatible endpoint."""

    shared: ClassVar = {"setup": "envs.external.setup:open_setup"}
    time_spent_by = "model"
    """What the program does between two requests is what the model's answers made it do."""

    setup: Setup

    def __init__(self) -> None:
        if not hasattr(self, "setup"):
            raise EnvError("External is made by its factory, which opens its gateway: forge_env.make('external')")
        self._session: Session | None = None
        self._program: Program | None = None
        self._asked: Asked | None = None

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
            command: what runs, see `envs.external.setup.open_setup`; it is looked for here already.
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
        self._contexts = Contexts()
        self._turns = 0
        self._messages: list[Message] = []
        self._session = self.setup.gateway.open()
        self._program = await self._start(self._session, seed or 0)
        if self._program.listener is not None:
            await self.setup.gateway.serve(self._session, self._program.listener)
        try:
            await self._wait()
        except TimeoutError:
            raise EnvError(f"the program asked the model nothing for {self._patience:g} s{self._stderr()}") from None
        if self._asked is None:
            code = await self._program.ended()
            raise EnvError(f"the program {how_it_ended(code)} and asked the model nothing{self._stderr()}")
        return self._observe(self._asked)

    async def step(self, action: Action) -> StepResult:
        if self._session is None or self._asked is None:
            raise EnvError("External.step was called before reset or after the end: reset starts an episode")
        asked, context = self._asked, self._context
        reply = Reply.of(action, asked.question, turn=self._turns)
        self._turns += 1
        self._contexts.answered(context, asked.question, reply.message)
        self._messages = [*asked.question.messages, reply.message]
        asked.reply.set_result(reply)
        try:
            await self._wait()
        except TimeoutError:
            note = f"the program did nothing that could be seen for {self._patience:g} s, and was ended"
            return (), 0.0, False, True, {"program": {**self._printed(), "note": note}, "ended_by": "step_seconds"}
        if self._asked is not None:
            observation, info = self._observe(self._asked)
            return observation, 0.0, False, False, info
        return await self._end(asked, action)

    async def close(self) -> None:
        session, program = self._session, self._program
        self._session = self._program = self._asked = None
        try:
            if program is not None:
                await program.close()
        finally:
            if session is not None:
                self.setup.gateway.close(session)

    @property
    def _patience(self) -> float:
        return _MARGIN * self._limits.step_seconds

    async def _start(self, session: Session, seed: int) -> Program:
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
        """Write what the program may know of its task, and return the text of the prompt."""
        prompt = next((m["content"] for m in reversed(self._task.prompt) if m["role"] == "user"), "")
        task = {"id": self._task.id, "messages": self._task.prompt, "metadata": dict(self._task.metadata), "seed": seed}
        (folder / _TASK).write_text(json.dumps(task, default=repr), encoding="utf-8")
        (folder / _PROMPT).write_text(prompt, encoding="utf-8", errors="replace")
        return prompt

    def _variables(self, session: Session, folder: Path, seed: int) -> dict[str, str]:
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
            "NO_PROXY": not_proxied,
            "no_proxy": not_proxied,
        }

    async def _wait(self) -> None:
        """Wait for the program's next request; there is none when it has ended."""
        assert self._session is not None and self._program is not None
        self._asked = None
        asking = asyncio.create_task(self._session.next())
        ending = asyncio.create_task(self._program.ended())
        try:
            done, _ = await asyncio.wait({asking, ending}, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError
            if not ending.done():
                self._asked = asking.result()
        finally:
            for task in (asking, ending):
                task.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)

    def _observe(self, asked: Asked) -> tuple[Sequence[Message], dict[str, Any]]:
        question = asked.question
        self._context: Context
        self._context, observation = self._contexts.place(question)
        self.tools = self._context.tools
        return observation, {
            "next": NextTurn(
                context=self._context.number,
                max_tokens=question.max_tokens,
                stop=question.stop,
                prompt=question.prompt,
            )
        }

    async def _end(self, asked: Asked, action: Action) -> StepResult:
        """The program has ended: is all of it recorded, and what is it worth?"""
        assert self._session is not None and self._program is not None
        code = await self._program.ended()
        if missing := self._session.missing():
            raise EnvError(f"{missing}: the record is not complete, and gets no reward{self._stderr()}")
        if code and not self.setup.scores_failures:
            raise EnvError(f"the program {how_it_ended(code)}{self._stderr()}")
        result = read_result(
            self._program.folder / _RESULT, self._program.tail("stdout"), self._messages[-1]["content"]
        )
        if code:
            result = replace(result, reward=0.0)  # what a program says of itself counts if it ended well
        reward, parts = await self._score(result)
        info = {"rewards": parts, "program": {**self._printed(), "exit_code": code}}
        if _was_cut_by_program(asked, action):
            info["outcome"] = Outcome.SCORED
        return (), reward, True, False, info

    async def _score(self, result: Result) -> tuple[float, dict[str, float]]:
        """Score with a deadline of its own: the step's and the episode's clocks stand still."""
        deadline, seed = Deadline(self._limits.scoring_seconds), self._seed or 0
        scoring = self.setup.scorer.score(self._task, self._messages, result, seed=seed, limits=self._limits)
        try:
            async with queued():
                return await deadline.run(scoring)
        except TimeoutError:
            if not deadline.expired:
                raise
            raise EnvError(f"scoring took longer than {self._limits.scoring_seconds:g} s") from None

    def _printed(self) -> dict[str, str]:
        assert self._program is not None
        return {name: self._program.tail(name)[-SHOWN:] for name in ("stdout", "stderr")}

    def _stderr(self) -> str:
        """The last lines of the program's standard error, for the end of a sentence."""
        assert self._program is not None
        lines = " | ".join(self._program.tail("stderr").split("\n")[-6:]).strip(" |")
        return f"; it wrote: {lines[-600:]}" if lines else ""


def _was_cut_by_program(asked: Asked, action: Action) -> bool:
    """Whether a last answer that was cut off had all the tokens that the program wanted of it."""
    limit, used = asked.question.max_tokens, (action.usage or {}).get("completion_tokens", 0)
    return action.finish_reason == "length" and limit is not None and used >= limit
