"""ConversationEnv: an environment in which the agent talks with a user.

Example::

    class Support(ConversationEnv):
        user = LLMUser("gpt-4.1-mini")  # plays what task.metadata["user"] describes

        @reward
        def solved(self, messages: list[Message]) -> float:
            return float(any("REFUND 20.00" in m["content"] for m in messages if m["role"] == "assistant"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrib.common.usage import record_usage
from contrib.judges.users.user import User, UserTurn
from forge_env.core.env import StepResult, after_reset
from forge_env.core.errors import EnvError, UserError
from forge_env.core.plain_value import own_copy
from forge_env.core.types import Action, Message, Task
from forge_env.core.user_code import guard
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.threads import behind_gate, call_on

MAX_TURNS = 20
"""Turns of the agent in a conversation, if neither the environment nor the caller sets another limit."""


class ConversationEnv(ToolEnv):
    """A `ToolEnv` with an agent that talks with a user. A message without tool calls goes to the user; his answer is
    the next observation. Tools may be called between two answers, and the user does not see them.

    If the first messages do not end with one of the user's, the user begins. The episode ends when the user is done. At
    the limit of turns it is truncated. In both cases the reward functions score the conversation; their `response` is
    the last message of the agent. `user_is_done` tells them which case it is.

    A user that raises, or says nothing without being done, is a fault: the episode has no reward.
    """

    user: User | None = None
    """The user of all episodes, see `User`; or override `make_user`."""
    user_is_done: bool = False
    """Whether the user has ended the conversation."""

    _made_user: User | None = None
    _turns_taken: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        is_known = cls.user is not None and not isinstance(cls.user, property)
        if is_known and not callable(getattr(cls.user, "reply", None)):
            raise UserError(
                f"{cls.__name__}.user is {cls.user!r:.60}, and no user: it has a method reply(messages), as "
                "ScriptedUser and LLMUser of contrib.judges.users do"
            )
        if not callable(cls.make_user):
            raise UserError(f"{cls.__name__}.make_user is {cls.make_user!r:.60}; it is a method make_user(self, task)")

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        return {"max_turns": MAX_TURNS}

    @classmethod
    def effects(cls) -> str:
        return str(getattr(cls.user, "effects", ""))

    def make_user(self, task: Task) -> Any:
        """Return the user of this episode; a plain or async hook, called after `setup`."""
        if self.user is None:
            raise UserError(
                f"{type(self).__name__} has no user: set the class attribute user, or define make_user(self, task)"
            )
        start = getattr(self.user, "start", None)
        return self.user if start is None else start(task, seed=self._seed)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode as `ToolEnv.reset` does, then make the user, who begins if it is his turn."""
        await super().reset(seed=seed, options=options)
        await self._release_user()
        self.user_is_done, self._turns_taken = False, 0
        with guard("make_user"):
            user = self.make_user(self.task)
            self._made_user = await user if hasattr(user, "__await__") else user
        if not callable(getattr(self._made_user, "reply", None)):
            raise EnvError(f"make_user returned {self._made_user!r:.80}, and no user: it has no method reply(messages)")
        if not self.messages or self.messages[-1]["role"] != "user":
            await self._ask_user()
            if self.user_is_done:
                raise EnvError("the user ended the conversation before the agent could answer")
        return tuple(self.messages), {}

    @behind_gate
    async def step(self, action: Action) -> StepResult:
        after_reset(self, self._made_user)
        self._turns_taken += 1
        observation: list[Message] = []
        info: dict[str, Any] = {}
        reward = 0.0
        if action.tool_calls:
            answers, reward, _, _, info = await super().step(action)
            observation.extend(answers)
        else:
            self.messages.append(action.message)
            observation.extend(await self._ask_user())
        is_last = self._turns_taken >= self._limits.max_turns and not self.user_is_done
        if not (is_last or self.user_is_done):
            return observation, reward, False, False, info
        total, parts = await self._score(action.text)
        info = {**info, "rewards": parts} | ({"ended_by": "max_turns"} if is_last else {})
        return observation, reward + total, self.user_is_done, is_last, info

    async def close(self) -> None:
        await self._release_user()
        await super().close()

    async def _ask_user(self) -> list[Message]:
        """Let the user speak; returns his message, in a list that is empty when he is done without a word."""
        assert self._made_user is not None
        with guard("user"):
            turn = await call_on(self, self._made_user.reply, own_copy(self.messages))
        if not isinstance(turn, UserTurn):
            raise EnvError(f"the user's reply is {turn!r:.80}; it is a UserTurn")
        if turn.usage is not None:
            record_usage("user", turn.usage)
        if not turn.text.strip() and not turn.done:
            raise EnvError("the user said nothing and did not end the conversation")
        self.user_is_done = turn.done
        messages: list[Message] = [{"role": "user", "content": turn.text}] if turn.text.strip() else []
        self.messages.extend(messages)
        return messages

    async def _release_user(self) -> None:
        user, self._made_user = self._made_user, None
        if (aclose := getattr(user, "aclose", None)) is not None:
            await aclose()
