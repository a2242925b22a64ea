"""The check of names: nothing of an environment takes the place of what the contract or ToolEnv defines."""

from __future__ import annotations

from forge_env.check.subject import Failed, Subject, instance, reset
from forge_env.core.env import Env
from forge_env.core.members import NameTaken
from forge_env.tool_env.tool_env import ToolEnv


async def names(subject: Subject) -> str:
    """No attribute that a constructor or a `reset` sets breaks a member; a class that breaks one cannot be made."""
    base = ToolEnv if issubclass(subject.factory.env_class, ToolEnv) else Env
    if subject.tasks:
        try:
            async with instance(subject) as env:
                await reset(env, subject.tasks[0], subject.seed)
        except NameTaken as error:
            raise Failed(str(error)) from None
        except Exception:  # the finding of the check of the contract
            pass
    return f"no name of {base.__name__} is taken"
