"""Shares of about the same cost: which samples go to which replica of a service."""

from __future__ import annotations

from collections.abc import Sequence


def even_shares(costs: Sequence[float], number: int) -> list[list[int]]:
    """Split what costs `costs` into at most `number` shares; returns the indices of each, in order.

    The most expensive one goes first, each to the share that costs least so far: no share then costs more than 4/3 of
    the best split's. There is no empty share.
    """
    shares: list[list[int]] = [[] for _ in range(number)]
    totals = [0.0] * number
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        least = min(range(number), key=lambda share: (totals[share], len(shares[share]), share))
        shares[least].append(index)
        totals[least] += costs[index]
    return [sorted(share) for share in shares if share]
