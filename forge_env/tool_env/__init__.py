"""`ToolEnv`, the base class of environments with tools: it calls the tools and the rewards."""
