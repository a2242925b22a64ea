"""LengthBias: compares the length of the groups trained on with that of all finished groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge_env.core.episode import Group


class LengthBias:
    """Counts the groups that finished and those that were trained on, and their sampled tokens.

    Quick groups overtake slow ones, so for a while the groups trained on may be shorter. Nothing is discarded for its
    age, so the difference vanishes.
    """

    def __init__(self) -> None:
        self._finished = self._trained = (0, 0)  # groups and their sampled tokens

    def finished(self, group: Group) -> None:
        self._finished = _added(self._finished, group)

    def trained(self, group: Group) -> None:
        self._trained = _added(self._trained, group)

    @property
    def bias(self) -> float:
        """Mean length of the groups trained on as a multiple of that of all finished ones; 1 is none."""
        (finished, all_tokens), (trained, tokens) = self._finished, self._trained
        return (tokens / trained) / (all_tokens / finished) if trained and all_tokens else 1.0

    def state_dict(self) -> dict[str, list[int]]:
        """Everything, as JSON."""
        return {"finished": list(self._finished), "trained": list(self._trained)}

    def load_state_dict(self, state: Mapping[str, Sequence[int]]) -> None:
        self._finished, self._trained = (_pair(state[name]) for name in ("finished", "trained"))


def _added(sums: tuple[int, int], group: Group) -> tuple[int, int]:
    return sums[0] + 1, sums[1] + sum(episode.num_sampled for episode in group.valid)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    groups, tokens = values
    return groups, tokens
