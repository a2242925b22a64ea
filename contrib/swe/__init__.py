"""Tasks in the shape of SWE-bench: a repository at a commit, a problem, and tests that appear after the agent."""
