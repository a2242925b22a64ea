"""The contracts: types, episodes, environments, tools, policies, sandboxes and errors; it imports nothing above it."""
