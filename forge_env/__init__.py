"""forge_env: a gym for language-model agents, and the trainer behind it.

Importing this package loads neither torch nor vllm, monarch or docker.
"""

from forge_env.env import Env
from forge_env.episode import Episode, Group, Row, Turn
from forge_env.errors import EnvError, ForgeError, InfraError, InvariantError, UserError
from forge_env.factory import EnvFactory, make
from forge_env.faults import FaultPolicy
from forge_env.protocols import Agent, Conversation, Policy
from forge_env.registry import env_class, env_names, register
from forge_env.rollout import run_episode, run_group
from forge_env.tool_env import ToolEnv
from forge_env.tools import Tool, reward, tool
from forge_env.types import (
    Action,
    Completion,
    EpisodeLimits,
    Message,
    Outcome,
    Sampling,
    Task,
    ToolCall,
    ToolSpec,
    ToolUse,
)

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Agent",
    "Completion",
    "Conversation",
    "Env",
    "EnvError",
    "EnvFactory",
    "Episode",
    "EpisodeLimits",
    "FaultPolicy",
    "ForgeError",
    "Group",
    "InfraError",
    "InvariantError",
    "Message",
    "Outcome",
    "Policy",
    "Row",
    "Sampling",
    "Task",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolSpec",
    "ToolUse",
    "Turn",
    "UserError",
    "env_class",
    "env_names",
    "make",
    "register",
    "reward",
    "run_episode",
    "run_group",
    "tool",
]
