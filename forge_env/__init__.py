"""forge_env: a gym for language-model agents, and the trainer behind it.

Importing this package loads neither torch nor vllm, monarch or docker.
"""

from forge_env.env import Env, EnvFactory
from forge_env.episode import Episode, Group, Row, Turn
from forge_env.errors import EnvError, ForgeError, InfraError, InvariantError, UserError
from forge_env.protocols import Agent, Conversation, Policy
from forge_env.registry import env_class, env_names, register
from forge_env.rollout import run_episode, run_group
from forge_env.tool_env import ToolEnv
from forge_env.tools import reward, tool
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
    "ToolCall",
    "ToolEnv",
    "ToolSpec",
    "Turn",
    "UserError",
    "env_class",
    "env_names",
    "register",
    "reward",
    "run_episode",
    "run_group",
    "tool",
]
