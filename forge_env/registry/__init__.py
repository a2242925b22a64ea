"""Names of environments, tools and agents, and what they stand for."""
