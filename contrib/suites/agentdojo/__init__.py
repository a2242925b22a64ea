"""AgentDojo, of the package agentdojo: tasks with tools, and prompt injections in what the tools return."""
