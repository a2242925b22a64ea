"""Services that environments run in: `env` plays groups of episodes."""
