"""external: any program that speaks a model's API, as an environment; sessions: agents that come by themselves."""

from contrib.external.env import External
from contrib.external.sessions import Sessions

__all__ = ["External", "Sessions"]
