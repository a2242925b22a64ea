"""AgentDojo, of the package agentdojo: tasks with tools, and prompt injections in what the tools return."""

from envs.suites.agentdojo.env import AgentDojo

__all__ = ["AgentDojo"]
