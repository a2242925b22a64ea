"""external: any program that speaks OpenAI's API, as an environment."""

from envs.external.env import External

__all__ = ["External"]
