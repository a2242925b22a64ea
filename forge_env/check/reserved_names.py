"""The check of names: an environment does not overwrite the names that the contract or ToolEnv needs."""

from __future__ import annotations

from forge_env.check.context import CheckContext, CheckFailed
from forge_env.check.direct_calls import fresh_instance, reset
from forge_env.core.env import Env
from forge_env.core.members import NameTaken
from forge_env.tool_env.tool_env import ToolEnv


async def reserved_names(context: CheckContext) -> str:
    """Neither the constructor nor `reset` sets a reserved attribute; a class that defines one is refused at once."""
    base = ToolEnv if issubclass(context.factory.env_class, ToolEnv) else Env
    if context.tasks:
        try:
            async with fresh_instance(context) as env:
                await reset(env, context.tasks[0], context.seed)
        except NameTaken as error:
            raise CheckFailed(str(error)) from None
        except Exception:  # the check "contract" reports it
            pass
    return f"no name of {base.__name__} is taken"
