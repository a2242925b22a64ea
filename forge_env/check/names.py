"""The check of names: nothing of an environment takes the place of what the contract or ToolEnv defines."""

from __future__ import annotations

from forge_env.check.subject import Failed, Subject, instance, reset
from forge_env.env import Env
from forge_env.tool_env import ToolEnv
from forge_env.tools import is_tool

_OWN = ("reset", "step", "close", "seed", "set_tools")
"""Methods that are called on every instance."""
_DATA = ("tools", "task", "messages", "np_random")
"""Attributes that ToolEnv sets."""


async def names(subject: Subject) -> str:
    """No tool, no reward and no attribute is named like a member of Env or ToolEnv."""
    env_class = subject.factory.env_class
    base = ToolEnv if issubclass(env_class, ToolEnv) else Env
    for name in (n for n in dir(base) if not n.startswith("_")):
        member = getattr(env_class, name, None)
        if is_tool(member):
            raise Failed(f"the tool {name} takes the place of {base.__name__}.{name}: name it {name}_ or otherwise")
        if hasattr(member, "__forge_reward__"):
            raise Failed(f"the reward {name} takes the place of {base.__name__}.{name}: give it another name")
    for name in _OWN:
        if hasattr(base, name) and not callable(getattr(env_class, name)):
            raise Failed(_taken(name, f"{env_class.__name__}.{name}", base))
    for name in _DATA if base is ToolEnv else ():
        if callable(getattr(env_class, name, None)):
            raise Failed(_taken(name, f"the method {name} of {env_class.__name__}", base))
    if subject.tasks:
        await _examine(subject, base)
    return f"no name of {base.__name__} is taken"


async def _examine(subject: Subject, base: type[Env]) -> None:
    """Look at an instance in an episode: what its constructor and its `reset` have set."""
    async with instance(subject) as env:
        try:
            await reset(env, subject.tasks[0], subject.seed)
        except Exception:  # the finding of the check of the contract, unless a name is why
            pass
        for name in _OWN:
            if name in vars(env) and not callable(vars(env)[name]):
                raise Failed(_taken(name, f"self.{name}", base))
        if isinstance(env, ToolEnv):
            task, messages = vars(env).get("task"), vars(env).get("messages")
            if task is not None and getattr(task, "id", None) != subject.tasks[0].id:
                raise Failed(_taken("task", "self.task", base))
            if messages is not None and not isinstance(messages, list):
                raise Failed(_taken("messages", "self.messages", base))


def _taken(name: str, what: str, base: type[Env]) -> str:
    return f"{what} takes the place of {base.__name__}.{name}, which every episode needs: give it another name"
