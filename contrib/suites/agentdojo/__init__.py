"""AgentDojo, of the package agentdojo: tasks with tools, and prompt injections in what the tools return."""

from contrib.suites.agentdojo.env import AgentDojo

__all__ = ["AgentDojo"]
