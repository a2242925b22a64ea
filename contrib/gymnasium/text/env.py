"""Gymnasium environments as forge environments: observations become messages, actions are read from the answer.

Example::

    FrozenLake = from_gymnasium("FrozenLake-v1", action_names=["left", "down", "right", "up"])
    forge_env.register("frozen_lake", FrozenLake)

At the command line "gymnasium:FrozenLake-v1" names one, with the defaults of `from_gymnasium`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import gymnasium
from gymnasium import error as gymnasium_error

from contrib.common.adapters import draw_seeds, json_object, refuse_calls
from contrib.gymnasium.text.spaces import (
    ParseAction,
    check_action_space,
    describe_actions,
    parse_action,
    write_observation,
)
from forge_env.core.env import Env, StepResult, after_reset
from forge_env.core.errors import UserError, nearest
from forge_env.core.reward_value import reaches, reward_value
from forge_env.core.types import Action, Message, Task
from forge_env.utils.targets import load, load_source

SYSTEM_PROMPT = "You act in an environment, one action per turn. End every answer with your action."

_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
_RESET = ("", "0", "39", "49")
_RESERVED = frozenset({"rewards", "tools", "outcome", "next"})
"""Names in a step's info that forge_env uses; the same names of Gymnasium's environments get a prefix."""
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class GymnasiumText(Env):
    """Base of the classes of `from_gymnasium`. One task is one seed of the Gymnasium environment.

    An action that cannot be read or is not allowed does not change the environment: the next message says what is
    allowed, and the reward of the turn is minus `penalty`.
    """

    make_gymnasium: ClassVar[Callable[..., gymnasium.Env[Any, Any]]]
    max_steps: ClassVar[int | None] = None
    """Gymnasium's limit; None if there is none, or if it is known only when the environment is made."""
    id: ClassVar[str]
    system_prompt: ClassVar[str] = SYSTEM_PROMPT
    describe: ClassVar[str | Callable[[gymnasium.Env[Any, Any]], str]] = ""
    action_names: ClassVar[Sequence[str]] = ()
    observation_names: ClassVar[Sequence[str]] = ()
    parse_action: ClassVar[ParseAction | None] = None
    render: ClassVar[Callable[[gymnasium.Env[Any, Any], Any], str] | None] = None

    def __init__(
        self, *, penalty: float = 0.01, reward_scale: float = 1.0, make_options: str | Mapping[str, Any] = "{}"
    ) -> None:
        """Make an instance.

        Args:
            penalty: taken off the reward for an action that cannot be read or is not allowed.
            reward_scale: factor of all rewards of the Gymnasium environment.
            make_options: keyword arguments of the Gymnasium environment; as text, a JSON object.
        """
        self._penalty, self._scale = penalty, reward_scale
        self._make_options = json_object(make_options, "make_options", '{"is_slippery": false}')
        self._env: gymnasium.Env[Any, Any] | None = None
        self._threshold: float | None = None

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        return {} if cls.max_steps is None else {"max_turns": cls.max_steps}

    def success(self, reward: float) -> bool:
        """Compare with Gymnasium's `reward_threshold`, scaled as the rewards, if there is one."""
        if self._threshold is None:
            return super().success(reward)
        return reaches(reward, self._threshold * self._scale)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """One task for each seed of the environment; seeds of "train" are even, seeds of "test" odd."""
        return [cls._task(seed_of_task) for seed_of_task in draw_seeds(split, count=count, seed=seed)]

    @classmethod
    def _task(cls, seed: int) -> Task:
        prompt: Message = {"role": "user", "content": f"This is {cls.id}."}
        return Task(prompt=(prompt,), metadata={"env": cls.id, "seed": seed})

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        self.close()
        task: Task | None = (options or {}).get("task")
        prompt = task.prompt if task is not None else ()
        start = task.metadata.get("seed", seed) if task is not None else seed
        self._env = self._make_env()
        self._threshold = self._env.spec.reward_threshold if self._env.spec is not None else None
        observation, info = self._env.reset(seed=start)
        system: tuple[Message, ...] = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
        text = "\n\n".join(part for part in (self._description(), self._text_of(observation)) if part)
        if prompt and prompt[-1]["role"] == "user":
            text = f"{prompt[-1]['content']}\n\n{text}"
            prompt = prompt[:-1]
        return (*system, *prompt, Message(role="user", content=text)), _renamed_info(info)

    def step(self, action: Action) -> StepResult:
        env = after_reset(self, self._env)
        if action.tool_calls:
            answers = refuse_calls(action.tool_calls, "action")
            return answers, -self._penalty, False, False, {"illegal_action": "a tool call"}
        try:
            move = self._read(action.text)
        except ValueError as wrong:
            text = f"Error: {wrong}. {describe_actions(env.action_space, self.action_names)}"
            return (Message(role="user", content=text),), -self._penalty, False, False, {"illegal_action": str(wrong)}
        observation, reward, terminated, truncated, info = env.step(move)
        message = Message(role="user", content=self._text_of(observation))
        value = reward_value(reward, f"{self.id} returned the reward") * self._scale
        return (message,), value, bool(terminated), bool(truncated), _renamed_info(info)

    def close(self) -> None:  # type: ignore[override]
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _make_env(self) -> gymnasium.Env[Any, Any]:
        try:
            env = type(self).make_gymnasium(**self._make_options)
        except TypeError as error:
            if not self._make_options:
                raise
            raise UserError(f"{self.id} does not take make_options={self._make_options}: {error}") from error
        try:
            for name in ("action_space", "observation_space"):
                is_used = name == "action_space" or type(self).render is None
                if is_used and getattr(env, name, None) is None:
                    raise UserError(f"{self.id} has no {name}: set it in the constructor, or in the class")
            if type(self).parse_action is None:
                check_action_space(env.action_space, self.id)
        except UserError:
            with suppress(Exception):  # it would hide the mistake
                env.close()
            raise
        return env

    def _description(self) -> str:
        assert self._env is not None
        description = type(self).describe
        text = description if isinstance(description, str) else description(self._env)
        return f"{text} {describe_actions(self._env.action_space, self.action_names)}".strip()

    def _read(self, text: str) -> Any:
        assert self._env is not None
        parse = type(self).parse_action
        if parse is not None:
            return parse(text, self._env.action_space)
        return parse_action(text, self._env.action_space, self.action_names)

    def _text_of(self, observation: Any) -> str:
        assert self._env is not None
        render = type(self).render
        if render is not None:
            return render(self._env, observation)
        text = write_observation(observation, self._env.observation_space, self.observation_names)
        if self._env.render_mode != "ansi":
            return text
        return f"{plain_text(str(self._env.render()))}\nObservation: {text}"


def from_gymnasium(
    env: str | Callable[..., gymnasium.Env[Any, Any]],
    *,
    name: str = "",
    describe: str | Callable[[gymnasium.Env[Any, Any]], str] = "",
    action_names: Sequence[str] = (),
    observation_names: Sequence[str] = (),
    parse_action: ParseAction | None = None,
    render: Callable[[gymnasium.Env[Any, Any], Any], str] | None = None,
    max_steps: int | None = None,
    system_prompt: str = SYSTEM_PROMPT,
) -> type[GymnasiumText]:
    """Return a forge environment class of a Gymnasium environment. Observations may be of any space.

    Args:
        env: an id of Gymnasium, or a function or class that makes the environment.
        name: of the class; made from the id when empty.
        describe: the text before the first observation, or a function of the environment that returns it. A sentence
            about the allowed actions follows it.
        action_names: of a Discrete action space, in order; the model may write a name in place of its number.
        observation_names: the same for a Discrete observation space.
        parse_action: reads an action from the answer; see `ParseAction`. By default an integer or name for Discrete, a
            JSON list for MultiDiscrete, MultiBinary and Box, the whole answer for Text; see `spaces.parse_action`.
        render: writes an observation. By default an environment with the render mode "ansi" is rendered so, with its
            colours in words, and the observation below.
        max_steps: truncates an episode; by default Gymnasium's limit, which of a function is known only when the
            environment is made. The class declares it as `max_turns`, so an episode may take that many turns.
        system_prompt: the first message; none when empty.
    """
    id_ = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    source = _spec(env) if isinstance(env, str) else env
    spec = source if isinstance(source, gymnasium.envs.registration.EnvSpec) else None
    attributes = {
        "make_gymnasium": staticmethod(functools.partial(_make, source, max_steps)),
        "max_steps": max_steps or (spec.max_episode_steps if spec is not None else None),
        "made_of": _modules(source),
        "id": id_,
        "system_prompt": system_prompt,
        "describe": describe if isinstance(describe, str) else staticmethod(describe),
        "action_names": tuple(action_names),
        "observation_names": tuple(observation_names),
        "parse_action": staticmethod(parse_action) if parse_action is not None else None,
        "render": staticmethod(render) if render is not None else None,
        "__module__": sys._getframe(1).f_globals.get("__name__", __name__),  # of the module that assigns the class
        "__doc__": f"The Gymnasium environment {id_}, over messages.",
    }
    return type(name or _class_name(id_), (GymnasiumText,), attributes)


def _renamed_info(info: Mapping[str, Any]) -> dict[str, Any]:
    return {f"gymnasium_{name}" if name in _RESERVED else name: value for name, value in info.items()}


def resolve(rest: str) -> type[Env]:
    """Return the environment of "gymnasium:REST".

    Args:
        rest: an id of Gymnasium, also after a module or a file that registers it, as in "my_module:My-v0"; or the
            target of a class or function that makes the environment, as in "my_file.py:MyEnv".
    """
    source, colon, name = rest.rpartition(":")
    if not colon:
        return _class_of(rest, rest)
    module = load_source(rest)
    if name in gymnasium.registry:
        return _class_of(name, name)
    if not name.isidentifier():
        ids = [id_ for id_, spec in gymnasium.registry.items() if _modules(spec)[-1] == module.__name__]
        raise UserError(f"{source} registers no environment {name!r} with Gymnasium. {nearest(name, ids)}")
    target = load(rest)
    if not callable(target) or (isinstance(target, type) and not issubclass(target, gymnasium.Env)):
        raise UserError(f"{rest!r} is neither a gymnasium.Env nor a function that returns one")
    return _class_of(target, name)


@functools.cache
def _class_of(env: str | Callable[..., gymnasium.Env[Any, Any]], name: str) -> type[Env]:
    """One class for each environment, so that its instances can be compared."""
    return from_gymnasium(env)


def plain_text(ansi: str) -> str:
    """Write terminal colours as text: a coloured background as [S], a coloured letter as R(blue).

    >>> plain_text("\\x1b[41mS\\x1b[0mFF \\x1b[34;1mR\\x1b[0m")
    '[S]FF R(blue)'
    """
    before, *pieces = _ESCAPE.split(ansi)
    parts, codes, text = [before], "", ""
    for escape, piece in zip(pieces[::2], pieces[1::2], strict=True):
        if escape in _RESET:
            parts += [_in_words(codes, text), piece]
            codes = text = ""
        else:
            codes += "" if text else f"{escape};"  # a further colour within a coloured text is ignored
            text += piece
    return "".join([*parts, text]).strip("\n")


def _in_words(escapes: str, text: str) -> str:
    """Write a text with the colours of the escapes before it."""
    codes = [int(code) for code in re.findall(r"\d+", escapes)]
    if any(40 <= code <= 47 or 100 <= code <= 107 for code in codes):
        return f"[{text}]"
    colours = [_COLOURS[code % 10] for code in codes if 30 <= code <= 37 or 90 <= code <= 97]
    return f"{text}({colours[0]})" if colours else text


def _spec(id_: str) -> gymnasium.envs.registration.EnvSpec:
    try:
        return gymnasium.spec(id_)
    except (gymnasium_error.Error, ImportError) as wrong:
        offer = nearest(id_, list(gymnasium.registry)).partition(" Available")[0]
        raise UserError(f"Gymnasium has no environment {id_!r}. {offer} ({wrong})") from None


def _make(
    source: gymnasium.envs.registration.EnvSpec | Callable[..., gymnasium.Env[Any, Any]],
    max_steps: int | None,
    **options: Any,
) -> gymnasium.Env[Any, Any]:
    if not isinstance(source, gymnasium.envs.registration.EnvSpec):
        env = source(**options)
        return env if max_steps is None else gymnasium.wrappers.TimeLimit(env, max_steps)
    creator: Any = source.entry_point
    if isinstance(creator, str):
        creator = gymnasium.envs.registration.load_env_creator(creator)
    if "ansi" in (getattr(creator, "metadata", None) or {}).get("render_modes", ()):
        options = {"render_mode": "ansi", **options}
    return gymnasium.make(source, max_episode_steps=max_steps, **options)


def _modules(source: Any) -> tuple[str, ...]:
    """Return the modules of a Gymnasium environment, as far as they are known before it is made."""
    creator = getattr(source, "entry_point", source)
    module = creator.partition(":")[0] if isinstance(creator, str) else getattr(creator, "__module__", "")
    return tuple(sorted({"gymnasium", module} - {""}))


def _class_name(id_: str) -> str:
    words = re.split(r"[\W_]+", re.sub(r"-v\d+$", "", id_))
    return "".join(word[:1].upper() + word[1:] for word in words) or "FromGymnasium"
