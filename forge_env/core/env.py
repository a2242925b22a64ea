"""The environment contract: Gymnasium's five-tuple, awaitable, over messages.

An observation is only the *new* messages, an action is an assistant message with its parsed tool calls. `reset` and
`step` may be plain functions: they are then run in a thread, so that a blocking environment never stalls another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from forge_env.core import members
from forge_env.core.errors import UserError
from forge_env.core.types import Action, Message, Task, ToolSpec

if TYPE_CHECKING:
    import numpy as np

SUCCESS = 1.0
"""The reward from which on an episode is a success, where the environment does not say otherwise."""
TimeSpentBy = Literal["model", "service"]
StepResult = tuple[Sequence[Message], float, bool, bool, dict[str, Any]]


class Env:
    """Base class of environments; one instance is one episode at a time.

    Subclasses write `reset` and `step`, sync or async. Randomness comes from `self.np_random`, which `reset` seeds, so
    the same seed gives the same episode however many run at once.

    A subclass with a tool, a reward or an attribute that breaks a member of the contract is refused with a UserError;
    an instance that sets one raises an EnvError there and then. See `forge_env.core.members`.
    """

    shared: ClassVar[Mapping[str, str]] = {}
    """What all episodes of a process share, as attribute name -> "module:factory" of an async context manager.

    A factory is called with those of the environment's options that its parameters name.
    """
    tools: Sequence[ToolSpec] = ()
    """What the model may call, in OpenAI's shape."""
    truncation_reward: float = 0.0
    """Added to the reward of an episode that runs out of turns, tokens or time, a cut-off last answer among them."""

    made_of: ClassVar[Sequence[str]] = ()
    """Modules and packages, by name, that it is made of beside its own code: what was measured before one of them
    changed is not taken for a result of today."""

    time_spent_by: TimeSpentBy = "service"
    """Whose time the steps take: it decides what an episode is worth that runs out of `EpisodeLimits.episode_seconds`.

    "service": services that the tools call, or the environment's own code. The model is not to blame: the outcome is
    TIMEOUT, without a reward. "model": code or commands that the model wrote. The episode is TRUNCATED and keeps its
    reward, with `truncation_reward`, so that it never pays to stall; a step that takes longer than `step_seconds` ends
    so as well, and is no fault. An instance may set its own, where that depends on its options.

    The default is "service", since tools are mostly their author's code, and a wrong "service" is seen, for TIMEOUTs
    are counted and shown. A wrong "model" would teach the model without a word that slow services are its failure.
    """

    _np_random: np.random.Generator | None = None
    _seed: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.time_spent_by not in get_args(TimeSpentBy):
            raise UserError(f'{cls.__name__}.time_spent_by is {cls.time_spent_by!r}; it is "model" or "service"')
        members.check_class(cls, members.ENV, Env)
        members.check_shared(cls, cls.shared, members.ENV, Env)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in members.ENV:
            members.check_attribute(self, name, members.ENV[name], value, Env)
        super().__setattr__(name, value)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Return `count` tasks of a split ("train" or "test"); the same seed gives the same tasks in the same order.

        A subclass may add keyword arguments of its own, a level for example: they are options of the environment.
        """
        raise NotImplementedError(f"{cls.__name__} has no tasks of its own: define the classmethod tasks()")

    @classmethod
    def effects(cls) -> str:
        """What an episode does outside of this machine, and does again when it is run again, as "calls mcp:..."; or "".

        A subclass may name options of its own, as `tasks` may.
        """
        return ""

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """The limits that an episode needs, by the names of `EpisodeLimits`, as ``{"max_turns": 30}``.

        They take the place of the defaults; a caller's own limits win. A subclass may name options of its own, as
        `tasks` may.
        """
        return {}

    def success(self, reward: float) -> bool:
        """Whether an episode that ended with this reward, the sum of its steps, is a success."""
        return reward >= SUCCESS

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode of `options["task"]`. Returns (messages, info), or an awaitable of it."""
        raise NotImplementedError

    def step(self, action: Action) -> Any:
        """Take one action. Returns (messages, reward, terminated, truncated, info), or an awaitable of it."""
        raise NotImplementedError

    async def on_limit(self, limit: str, reason: str = "") -> Any:
        """Told that the episode has reached a limit; may be a plain function.

        Before a turn whose prompt leaves no room to answer, which is "max_tokens", it may return what `step` returns:
        the episode goes on from there without a turn. Otherwise, and by default, it is over.

        Args:
            limit: "max_tokens", "max_turns", "step_seconds" or "episode_seconds".
            reason: of "max_tokens", where there is one.
        """
        return None

    def final_info(self) -> Mapping[str, Any]:
        """Return what the record holds of the whole episode, beside the infos of `reset` and `step`.

        Asked once, after `close`, however the episode has ended. It waits for nothing. The key "refused_requests", a
        count by reason, is shown with the figures of an evaluation.
        """
        return {}

    async def close(self) -> Any:
        """Free what this instance holds; a plain function will do. Must be idempotent."""

    def seed(self, seed: int | None) -> None:
        """Seed `self.np_random`, as Gymnasium does."""
        self._seed, self._np_random = seed, None

    @property
    def np_random(self) -> np.random.Generator:
        """The episode's own generator, made when it is first used."""
        if self._np_random is None:
            from gymnasium.utils import seeding  # a third of a second to import, and many environments draw nothing

            self._np_random, self._seed = seeding.np_random(self._seed)
        return self._np_random
