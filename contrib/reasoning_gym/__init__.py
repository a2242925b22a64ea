"""Every dataset of reasoning-gym as an environment, `reasoning_gym:NAME`."""
