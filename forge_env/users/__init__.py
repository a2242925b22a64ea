"""Users that an environment talks with: scripted, or played by a model. `ConversationEnv` alternates user and agent."""

from forge_env.users.conversation import ConversationEnv
from forge_env.users.llm_user import LLMUser
from forge_env.users.scripted_user import ScriptedUser
from forge_env.users.user import User, UserTurn, transcript

__all__ = ["ConversationEnv", "LLMUser", "ScriptedUser", "User", "UserTurn", "transcript"]
