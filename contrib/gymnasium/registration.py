"""Registers the environments with Gymnasium by their names: `code_exec` is forge_env/CodeExec-v0."""

from __future__ import annotations

import re

import gymnasium

from forge_env.core.errors import UserError

NAMESPACE = "forge_env"
ENV, WRAPPER = "contrib.gymnasium.env:SyncEnv", "contrib.gymnasium.env:TurnLimit"


def gymnasium_id(name: str) -> str:
    """Return the Gymnasium id of an environment's name.

    >>> gymnasium_id("code_exec")
    'forge_env/CodeExec-v0'
    """
    words = [word for word in re.split(r"[\W_]+", name) if word]
    return f"{NAMESPACE}/{''.join(word[0].upper() + word[1:] for word in words)}-v0"


def register_env(name: str) -> str:
    """Register an environment with Gymnasium by its name, without importing it, and return its id."""
    gym_id = gymnasium_id(name)
    spec = gymnasium.registry.get(gym_id)
    if spec is None:
        wrappers = (gymnasium.envs.registration.WrapperSpec(WRAPPER.partition(":")[2], WRAPPER, kwargs={}),)
        gymnasium.register(gym_id, entry_point=ENV, additional_wrappers=wrappers, kwargs={"env": name})
    elif (other := spec.kwargs.get("env")) != name:
        raise UserError(f"{name!r} and {other!r} would both be {gym_id} in Gymnasium: rename one")
    return gym_id
