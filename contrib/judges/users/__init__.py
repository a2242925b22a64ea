"""Users that an environment talks with: scripted, or played by a model. `ConversationEnv` alternates user and agent."""

from contrib.judges.users.conversation import ConversationEnv
from contrib.judges.users.llm_user import LLMUser
from contrib.judges.users.scripted_user import ScriptedUser
from contrib.judges.users.user import User, UserTurn, transcript

__all__ = ["ConversationEnv", "LLMUser", "ScriptedUser", "User", "UserTurn", "transcript"]
