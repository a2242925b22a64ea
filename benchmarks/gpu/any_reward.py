"""A reward for models with random weights, which solve no task. A run imports this file, so it imports no torch."""

import zlib

from forge_env.core.episode import Episode


def any_reward(episode: Episode) -> float:
    """Differs within a group, so that all episodes are trained on."""
    return zlib.crc32(episode.id.encode()) / 2**32
