"""forge_env: a gym for language-model agents, and the trainer behind it.

Importing this package loads neither torch nor vllm, monarch or docker, and a name's module only when it is used.
"""

# ruff: noqa: F401 (the imports are for type checkers and readers)

from __future__ import annotations

from forge_env.utils.interrupts import leave_at_once

leave_at_once()  # before anything that takes time to import

import importlib  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from forge_env.registry.gymnasium_registration import register_with_gymnasium  # noqa: E402

if TYPE_CHECKING:
    from forge_env.core.env import Env
    from forge_env.core.episode import Episode, Group, Row, Turn
    from forge_env.core.errors import EnvError, ForgeError, InfraError, InvariantError, TooFewTasks, UserError
    from forge_env.core.faults import FaultPolicy
    from forge_env.core.protocols import Agent, Conversation, NextTurn, Policy
    from forge_env.core.tools import Tool, ToolOptions, group_reward, reward, tool
    from forge_env.core.turn import Completion
    from forge_env.core.types import (
        Action,
        EpisodeLimits,
        Message,
        Outcome,
        Sampling,
        Task,
        ToolCall,
        ToolSpec,
        ToolUse,
    )
    from forge_env.evaluation.api import EvalResult, evaluate, evaluate_async
    from forge_env.evaluation.sets import SetResult, evaluate_set, evaluate_set_async
    from forge_env.registry.registry import Entry, entries, env_class, env_names, register, tool_names, tools_of
    from forge_env.rollout.compaction import COMPACT_PROMPT
    from forge_env.rollout.factory import EnvFactory, make
    from forge_env.rollout.group_reward import pairwise
    from forge_env.rollout.rollout import GroupSpec, run_episode, run_group
    from forge_env.tool_env.tool_env import ToolEnv

__version__ = "0.2.0"

_MODULES = {
    "forge_env.core.env": "Env",
    "forge_env.evaluation.api": "EvalResult evaluate evaluate_async",
    "forge_env.evaluation.sets": "SetResult evaluate_set evaluate_set_async",
    "forge_env.core.episode": "Episode Group Row Turn",
    "forge_env.core.errors": "EnvError ForgeError InfraError InvariantError TooFewTasks UserError",
    "forge_env.rollout.compaction": "COMPACT_PROMPT",
    "forge_env.rollout.factory": "EnvFactory make",
    "forge_env.core.faults": "FaultPolicy",
    "forge_env.core.protocols": "Agent Conversation NextTurn Policy",
    "forge_env.registry.registry": "Entry entries env_class env_names register tool_names tools_of",
    "forge_env.rollout.group_reward": "pairwise",
    "forge_env.rollout.rollout": "GroupSpec run_episode run_group",
    "forge_env.tool_env.tool_env": "ToolEnv",
    "forge_env.core.tools": "Tool ToolOptions group_reward reward tool",
    "forge_env.core.turn": "Completion",
    "forge_env.core.types": "Action EpisodeLimits Message Outcome Sampling Task ToolCall ToolSpec ToolUse",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'forge_env' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_gymnasium(lambda: __getattr__("env_names")())
