"""The environment contract: Gymnasium's five-tuple, awaitable, over messages.

An observation is only the *new* messages, an action is an assistant message with its parsed tool calls. `reset` and
`step` may be plain functions: they are then run in a thread, so that a blocking environment never stalls another.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast, get_args

from forge_env.core.errors import EnvError, UserError
from forge_env.core.reward_value import reaches
from forge_env.core.tools import is_tool
from forge_env.core.types import Action, Message, Outcome, Task, ToolSpec

if TYPE_CHECKING:
    import numpy as np

SUCCESS = 1.0
"""An episode with at least this reward, see `reaches`, is a success, unless the environment overrides `Env.success`."""
TimeSpentBy = Literal["model", "service"]
StepResult = tuple[Sequence[Message], float, bool, bool, dict[str, Any]]
T = TypeVar("T")


class Env:
    """Base class of environments; one instance is one episode at a time.

    Subclasses write `reset` and `step`, sync or async. Randomness comes from `self.np_random`, which `reset` seeds, so
    the same seed gives the same episode however many run at once.

    A subclass with a tool, a reward or an attribute that breaks a member of the contract is refused with a UserError.
    """

    shared: ClassVar[Mapping[str, str]] = {}
    """Resources that all episodes of a process share: attribute name -> "module:factory" of an async context manager.

    A factory is called with the options of the environment that its parameters name.
    """
    tools: Sequence[ToolSpec] = ()
    """The tools that the model may call, in OpenAI's shape.

    All episodes share the specs: to change one, an instance sets `self.tools` to an edited copy.deepcopy(self.tools).
    """
    truncation_reward: float = 0.0
    """Added to the reward of a truncated episode: out of turns, tokens or time, or with a cut-off last answer."""

    made_of: ClassVar[Sequence[str]] = ()
    """Names of further modules and packages that the environment depends on. An evaluation is not resumed after one of
    them has changed."""

    time_spent_by: TimeSpentBy = "service"
    """What spends the time of the steps: it decides the outcome of an episode that exceeds a time limit.

    "service": services that the tools call, or the environment's own code. The model is not to blame: the outcome is
    TIMEOUT, without a reward. "model": code or commands that the model wrote. The episode is TRUNCATED and keeps its
    reward, with `truncation_reward`, so that stalling never pays; the same holds for a step that exceeds
    `step_seconds`. An instance may set its own value, if that depends on its options.

    The default is "service", because a wrong "service" is visible: TIMEOUTs are counted and shown. A wrong "model"
    would silently train the model as if slow services were its failure.
    """

    allows_overlap: ClassVar[bool] = False
    """Whether a method may begin while another one of the instance still runs, because its caller was cancelled or its
    time was up. Such an instance guards its state itself, by a lock for example."""

    one_process: ClassVar[bool] = False
    """Whether a run has one process for its episodes by default, because it listens at an address, for example."""

    _episode_player: ClassVar[Callable[..., Awaitable[tuple[Outcome, str]]] | None] = None
    """Plays its episodes in place of `EpisodeRun.play`, with the same arguments."""
    _np_random: np.random.Generator | None = None
    _seed: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.time_spent_by not in get_args(TimeSpentBy):
            raise UserError(f'{cls.__name__}.time_spent_by is {cls.time_spent_by!r}; it is "model" or "service"')
        check_class(cls, Env)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Return `count` tasks of a split ("train" or "test"); the same seed gives the same tasks in the same order.

        A subclass may add keyword arguments, a level for example: they are options of the environment. It raises
        `TooFewTasks` for more tasks than there are.
        """
        raise NotImplementedError(f"{cls.__name__} has no tasks of its own: define the classmethod tasks()")

    @classmethod
    def can_demonstrate(cls, task: Task) -> bool:
        """Whether the environment's expert can solve a task; without an expert it is False."""
        return hasattr(cls, "expert")

    @classmethod
    def effects(cls) -> str:
        """Return what an episode does outside of this machine, and does again in a replay, as "calls mcp:..."; or "".

        A subclass may add keyword arguments, as in `tasks`.
        """
        return ""

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """Return the limits that an episode needs, by the names of `EpisodeLimits`, as ``{"max_turns": 30}``.

        They override the defaults; the limits of a caller override them. A subclass may add keyword arguments, as in
        `tasks`.
        """
        return {}

    def success(self, reward: float) -> bool:
        """Whether an episode with this reward, the sum over its steps, is a success; may be async."""
        return reaches(reward, SUCCESS)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode of `options["task"]`. Returns (messages, info), or an awaitable of it."""
        raise NotImplementedError

    def step(self, action: Action) -> Any:
        """Take one action. Returns (messages, reward, terminated, truncated, info), or an awaitable of it."""
        raise NotImplementedError

    async def on_limit(self, limit: str, reason: str = "") -> Any:
        """React to a limit that the episode has reached; may be a plain function.

        "max_tokens" means that the next prompt leaves no room to answer. For it, the method may return what `step`
        returns: the episode then continues without a turn. In all other cases, and by default, the episode ends.

        Args:
            limit: "max_tokens", "max_turns", "step_seconds" or "episode_seconds".
        """
        return None

    def final_info(self) -> Mapping[str, Any]:
        """Return facts about the whole episode, which are added to `Episode.info`.

        Called once, after `close`, however the episode has ended; may be async. The key "refused_requests", a
        count by reason, appears in the figures of an evaluation.
        """
        return {}

    async def close(self) -> Any:
        """Free the resources of this instance; may be a plain function. Must be idempotent."""

    def seed(self, seed: int | None) -> None:
        """Seed `self.np_random`, as Gymnasium does."""
        self._seed, self._np_random = seed, None

    @property
    def np_random(self) -> np.random.Generator:
        """The random generator of the episode, created at its first use."""
        if self._np_random is None:
            from gymnasium.utils import seeding  # takes 0.3 s to import, and many environments never use it

            self._np_random, self._seed = seeding.np_random(self._seed)
        return self._np_random


def task_of(env: Env, options: Mapping[str, Any] | None) -> Task:
    if options is None or "task" not in options:
        raise EnvError(f"{type(env).__name__}.reset needs options={{'task': Task(...)}}")
    return cast(Task, options["task"])


def after_reset(env: Env, value: T | None) -> T:
    """Return what `reset` has made for the `step` that calls this."""
    if value is None:
        name = type(env).__name__
        raise EnvError(f"{name}.step was called before reset or after the end of the episode: reset starts one")
    return value


_OPTIONAL = dict.fromkeys(("expert", "cheats"), classmethod(lambda cls: None))
_KINDS: tuple[Any, ...] = (property, bool, Real, str, Mapping, (list, tuple))


def check_class(cls: Any, root: type) -> None:
    """Check the names that `root` has in a subclass and its mixins; its parents were checked already."""
    for name, own in {**dict.fromkeys(inspect.get_annotations(root)), **_OPTIONAL, **vars(root)}.items():
        owner = next((c for c in cls.__mro__ if name in vars(c)), root)
        if name.startswith("__") or (owner is not cls and (issubclass(owner, root) or issubclass(root, owner))):
            continue
        value, member = vars(owner)[name], getattr(cls, name)
        is_reward = hasattr(member, "__forge_reward__") or hasattr(member, "__forge_group_reward__")
        mark, purpose = "a tool" if is_tool(member) else "a reward" if is_reward else "", _purpose(name, value, own)
        if mark or (purpose and not name.startswith("_")):
            what = mark or ("a method of an instance" if inspect.isfunction(value) else f"{value!r:.60}")
            sentence = f"{owner.__name__}.{name} is {what}, and {root.__name__} reserves this name for"
            raise UserError(f"{sentence} {purpose or _purpose(name, ..., own)}: call it {name}_ or otherwise")


def _purpose(name: str, value: Any, own: Any) -> str:
    """What a name is reserved for, if a value is something else; "" if it fits."""
    is_method = inspect.isfunction(value) and [*inspect.signature(value).parameters][:1] in (["self"], ["cls"])
    is_mapping = name == "limits" and isinstance(value, Mapping)
    if isinstance(own, classmethod):
        fits = is_mapping or (hasattr(value, "__get__") and not is_method)
        return "" if fits else "a class method, with @classmethod or @staticmethod above it"
    if inspect.isfunction(own):
        fits = not isinstance(value, property) and (callable(value) or hasattr(value, "__get__"))
        return "" if fits else "a method"
    if own is None:
        return "" if value is None else "itself"
    kind = next((kind for kind in _KINDS if isinstance(own, kind)), type(own))
    kinds = (property, *(kind if isinstance(kind, tuple) else (kind,)))
    return "" if isinstance(value, kinds) else f"a {'list' if isinstance(own, tuple) else type(own).__name__}"


def check_instance(env: object, root: type) -> None:
    """Check that the constructor of an environment has called its parent's, and set no method to something else."""
    if hasattr(env, "_use_tools") and "_toolbox" not in vars(env):  # of ToolEnv
        raise EnvError(f"{type(env).__name__}.__init__ does not call super().__init__(): write it as its first line")
    for name, value in vars(env).items():
        if inspect.isfunction(vars(root).get(name)) and not callable(value):
            what = f"{type(env).__name__} sets self.{name} to {value!r:.60}, and {root.__name__}.{name} is a method"
            raise EnvError(f"{what}: call it {name}_ or otherwise")
