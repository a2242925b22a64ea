"""LengthBias: the groups trained on against all finished groups, by their length."""

from __future__ import annotations

from dataclasses import dataclass

from forge_env.core.episode import Group


@dataclass(slots=True, kw_only=True)
class LengthBias:
    """Counts the groups that finished and those that were trained on, and their sampled tokens.

    Quick groups overtake slow ones, so for a while the groups trained on may be shorter. Nothing is discarded for its
    age, so the difference vanishes. Every field is JSON, so that a checkpoint keeps `asdict`.
    """

    finished_groups: int = 0
    finished_tokens: int = 0
    trained_groups: int = 0
    trained_tokens: int = 0

    def count_finished(self, group: Group) -> None:
        self.finished_groups += 1
        self.finished_tokens += _tokens(group)

    def count_trained(self, group: Group) -> None:
        self.trained_groups += 1
        self.trained_tokens += _tokens(group)

    @property
    def bias(self) -> float:
        """Mean length of the groups trained on as a multiple of the mean length of all finished ones; 1 is none."""
        if not self.trained_groups or not self.finished_tokens:
            return 1.0
        return (self.trained_tokens / self.trained_groups) / (self.finished_tokens / self.finished_groups)


def _tokens(group: Group) -> int:
    return sum(episode.num_sampled for episode in group.valid)
