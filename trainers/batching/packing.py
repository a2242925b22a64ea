"""Which rows share a sequence, a micro-batch and a rank: planning on lengths alone.

A plan is made for all ranks at once, and every rank makes the same one. Ranks run in lock-step: in each round every
rank has one micro-batch, and the round takes as long as its most expensive one. So a plan is a table of rounds, with
micro-batches of about the same cost in each round, and not a share of the samples for each rank.

Words: an episode is a sequence of row lengths, where a length of 0 is a row that nobody reads. A layout is one
micro-batch: its sequences, each a list of `(episode, row)`.

The rows of an episode stay in one micro-batch if one can hold them. Otherwise the episode is split: each of its rows is
placed by itself. The loss of a split episode needs the logprobs of all its rows first, which is one more forward pass,
so the rows of split episodes share no micro-batch with whole episodes, and theirs come first on every rank.

Cost is FLOPs. Forward and backward, a row of n tokens takes 6 P n for the matrices and 6 l w n^2 for causal attention,
with P the parameters of the matrices, l the layers and w the width of all heads (12 l w for every pair of tokens, and
n^2 / 2 pairs). That is proportional to `n + n^2 / crossover` with `crossover = P / (l w)`, the length at which
attention costs as much as all the rest.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trainers.families.shape import ModelShape

Place = tuple[int, int]  # (episode, row)
Layout = list[list[Place]]

DEFAULT_CROSSOVER = 10_000.0
"""The value for Qwen3-0.6B; 30,000 for 1.7B and 50,000 for 8B."""
GOOD_ENOUGH = 0.01  # share of padding below which no smaller rectangle is looked for
MORE_SEQUENCES = 8  # than the fewest that would do: how far it is looked for


def flops_crossover(shape: ModelShape) -> float:
    """The row length at which attention costs as much as the matrices.

    Of experts those count that compute a token. The output layer counts as if it ran on every token, so rows with few
    sampled tokens are slightly overrated.
    """
    width, layers, query = shape.hidden_size, shape.num_hidden_layers, shape.query_size
    layer = 2 * width * (query + shape.key_value_size) + 3 * width * shape.mlp_size
    return (layers * layer + width * shape.vocab_size) / (layers * query)


def row_cost(length: int, crossover: float = DEFAULT_CROSSOVER) -> float:
    """FLOPs of a row, forward and backward, in units of one token's FLOPs outside of attention."""
    return length + length * length / crossover


def round_up(length: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `length`."""
    return -(-length // multiple) * multiple


class _Item(NamedTuple):
    """What is placed as one: an episode that has something to read, or one row of a split episode."""

    lengths: tuple[int, ...]  # longest first
    places: tuple[Place, ...]  # in the same order
    tokens: int
    cost: float
    is_part: bool = False  # of a split episode


def _items(episodes: Sequence[Sequence[int]], crossover: float) -> list[_Item]:
    items = []
    for episode, rows in enumerate(episodes):
        read = sorted(((length, (episode, row)) for row, length in enumerate(rows) if length), key=lambda x: -x[0])
        if read:
            lengths, places = zip(*read, strict=True)
            items.append(_Item(lengths, places, sum(lengths), sum(row_cost(n, crossover) for n in lengths)))
    return items


def _split(items: Iterable[_Item], fits: Callable[[_Item], bool], crossover: float) -> list[_Item]:
    """The same items, with single rows in the place of each episode of several rows that does not fit."""
    result: list[_Item] = []
    for item in items:
        if len(item.places) == 1 or fits(item):
            result.append(item)
        else:
            rows = zip(item.lengths, item.places, strict=True)
            result += [_Item((n,), (place,), n, row_cost(n, crossover), is_part=True) for n, place in rows]
    return result


# -- one row to a sequence ---------------------------------------------------------------------------------------------


class _Padded:
    """A micro-batch of padded rows in the making; its first row is its longest."""

    def __init__(self) -> None:
        self.width = 0  # tokens of a sequence
        self.is_part = False  # whether it has rows of split episodes
        self.layout: Layout = []

    def has_room(self, item: _Item, max_tokens: int) -> bool:
        if not self.layout:
            return True
        fits = (len(self.layout) + len(item.places)) * self.width <= max_tokens
        return fits and item.is_part == self.is_part

    def add(self, item: _Item, multiple: int) -> None:
        self.width = self.width or round_up(item.lengths[0], multiple)
        self.is_part = item.is_part
        self.layout.extend([place] for place in item.places)

    def cost(self, crossover: float) -> float:
        return len(self.layout) * row_cost(self.width, crossover)


def plan_padded(
    episodes: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    multiple: int = 1,
    ranks: int = 1,
    crossover: float = DEFAULT_CROSSOVER,
) -> list[list[Layout]]:
    """Plan one row per sequence, each padded to the longest row of its micro-batch.

    Rows of split episodes go first, then episodes by their longest row, longest first, so that neighbours need little
    padding. Each goes to the rank with the cheapest micro-batch in the present round, among those with room. If none
    has room, the next round begins.

    Returns:
        What `plan_packed` returns.
    """

    def fits(item: _Item) -> bool:
        return len(item.places) * round_up(item.lengths[0], multiple) <= max_tokens

    rounds: list[list[_Padded]] = []
    totals = [0.0] * ranks  # of the rounds that are complete
    items = _split(_items(episodes, crossover), fits, crossover)
    for item in sorted(items, key=lambda item: (not item.is_part, -item.lengths[0], item.lengths, item.places)):
        free = [n for n in range(ranks) if rounds and rounds[-1][n].has_room(item, max_tokens)]
        if not free:
            if rounds:
                totals = [total + batch.cost(crossover) for total, batch in zip(totals, rounds[-1], strict=True)]
            rounds.append([_Padded() for _ in range(ranks)])
            free = list(range(ranks))
        rank = min(free, key=lambda n: (rounds[-1][n].cost(crossover), totals[n], n))
        rounds[-1][rank].add(item, multiple)
    return [[batches[rank].layout for batches in rounds if batches[rank].layout] for rank in range(ranks)]


# -- several rows to a sequence ----------------------------------------------------------------------------------------


def plan_packed(
    episodes: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    pack_length: int,
    multiple: int = 1,
    ranks: int = 1,
    crossover: float = DEFAULT_CROSSOVER,
) -> list[list[Layout]]:
    """Plan several rows per sequence.

    Best-fit decreasing says how few micro-batches do. That many, rounded up to whole rounds, are then filled evenly:
    episodes go by cost, most expensive first, to the cheapest micro-batch with room. If that fails, because the best
    fit is nearly full, the best fit itself is the plan. Rows of split episodes are planned likewise, in micro-batches
    of their own. The micro-batches are dealt out by cost, split episodes first, so that the micro-batches of one round
    are about equal.

    With `pack_length` equal to `max_tokens` a micro-batch is one sequence, and has padding only because of `multiple`.
    A shorter one is for attention that costs as much as the full sequence, as with a dense document mask.

    Args:
        episodes: lengths of each episode's rows.
        max_tokens: tokens of a micro-batch, padding included. A row that needs more has one of its own.
        pack_length: tokens of a sequence; a longer row gets what it needs.
        multiple: lengths of sequences are rounded up to it.

    Returns:
        For each rank its layouts, in order. All ranks have equally many, except that some may lack the last.
    """
    items = _items(episodes, crossover)
    # `pack_length` within the limit, or what the longest row needs that is still within the limit.
    length = min(pack_length, max_tokens) // multiple * multiple
    longest = (round_up(item.lengths[0], multiple) for item in items)
    length = max(length, multiple, *(need for need in longest if need <= max_tokens))
    most = max(1, max_tokens // length)

    def fits(item: _Item) -> bool:
        # Where even one sequence is more than a micro-batch may have, nothing shares one.
        return length <= max_tokens and (item.tokens <= length or _Packed(length, most).add(item))

    whole: list[_Item] = []
    parts: list[_Item] = []
    alone: list[_Packed] = []
    for item in _split(items, fits, crossover):
        if fits(item):
            (parts if item.is_part else whole).append(item)
        else:
            alone.append(_Packed(max(length, round_up(item.lengths[0], multiple)), len(item.lengths)))
            alone[-1].add(item)
    fewest, fewest_of_parts = _best_fit(whole, length, most), _best_fit(parts, length, most)
    count = round_up(len(fewest) + len(fewest_of_parts) + len(alone), ranks) - len(alone)
    # After rounding up, the rest goes to the micro-batches with more to compute.
    # The rows of split episodes take FLOPs for two forwards and a backward, which is two forwards.
    of_whole, of_parts = sum(item.cost for item in whole), sum(item.cost for item in parts) * 4 / 3
    share = round(count * (of_parts / (of_whole + of_parts) if of_parts else 0.0))
    count_of_parts = min(max(share, len(fewest_of_parts)), count - len(fewest))
    batches = _spread(whole, count - count_of_parts, length, most) or fewest
    batches += _spread(parts, count_of_parts, length, most) or fewest_of_parts
    return _deal([batch for batch in [*batches, *alone] if batch.items], multiple, ranks)


class _Packed:
    """A micro-batch of at most `most` sequences of `length` tokens in the making."""

    def __init__(self, length: int, most: int) -> None:
        self.length, self.most = length, most
        self.items: list[_Item] = []
        self.layout: Layout = []
        self.free: list[int] = []  # tokens that each sequence of the layout has left
        self.room = length * most  # tokens left in all; whether an episode of that size fits depends on its rows

    def add(self, item: _Item) -> bool:
        """Place an item's rows, each in the fullest sequence with room; changes nothing if one of them has none."""
        if item.tokens > self.room:
            return False
        free, picks = self.free.copy(), []
        for length in item.lengths:
            best, best_space = len(free), self.length + 1
            for place, space in enumerate(free):
                if length <= space < best_space:
                    best, best_space = place, space
            if best == len(free):
                if best == self.most or length > self.length:
                    return False
                free.append(self.length)
            free[best] -= length
            picks.append(best)
        while len(self.layout) < len(free):
            self.layout.append([])
        for place, row in zip(picks, item.places, strict=True):
            self.layout[place].append(row)
        self.free = free
        self.room -= item.tokens
        self.items.append(item)
        return True

    @property
    def cost(self) -> float:
        return sum(item.cost for item in self.items)

    @property
    def is_part(self) -> bool:
        return self.items[0].is_part


def _best_fit(items: Iterable[_Item], length: int, most: int) -> list[_Packed]:
    """Best-fit decreasing: each item, largest first, goes to the fullest micro-batch with room for it."""
    batches: list[_Packed] = []
    rooms: list[tuple[int, int]] = []  # (room, index into batches), in order
    for item in sorted(items, key=lambda item: (-item.tokens, item.lengths, item.places)):
        for position in range(bisect_left(rooms, (item.tokens, -1)), len(rooms)):
            _, number = rooms[position]
            if batches[number].add(item):
                del rooms[position]
                break
        else:
            number = len(batches)
            batches.append(_Packed(length, most))
            batches[number].add(item)
        insort(rooms, (batches[number].room, number))
    return batches


def _spread(items: Iterable[_Item], count: int, length: int, most: int) -> list[_Packed]:
    """Fill `count` micro-batches to about equal cost; the empty list when an item finds no room."""
    batches = [_Packed(length, most) for _ in range(count)]
    loads = [(0.0, number) for number in range(count)]  # a heap: the cheapest first
    full: list[tuple[int, float, int]] = []  # a heap of those that had no room: the emptiest first
    for item in sorted(items, key=lambda item: (-item.cost, item.lengths, item.places)):
        while full and -full[0][0] >= item.tokens:
            _, load, number = heapq.heappop(full)
            heapq.heappush(loads, (load, number))
        without: list[tuple[int, float, int]] = []
        while loads and not batches[loads[0][1]].add(item):
            load, number = heapq.heappop(loads)
            without.append((-batches[number].room, load, number))
        if not loads:
            return []
        load, number = loads[0]
        heapq.heapreplace(loads, (load + item.cost, number))
        for entry in without:
            heapq.heappush(full, entry)
    return batches


def _deal(batches: Iterable[_Packed], multiple: int, ranks: int) -> list[list[Layout]]:
    """Deal micro-batches out by cost, the ranks taking turns at being first, so that their totals even out too.

    Parts of split episodes come first: all ranks then have them in the same rounds.
    """
    plans: list[list[Layout]] = [[] for _ in range(ranks)]
    for number, batch in enumerate(sorted(batches, key=lambda batch: (not batch.is_part, -batch.cost))):
        round_number, turn = divmod(number, ranks)
        plans[ranks - 1 - turn if round_number % 2 else turn].append(_smallest(batch, multiple))
    return plans


def _smallest(batch: _Packed, multiple: int) -> Layout:
    """Put a micro-batch's rows into as many sequences as make a small rectangle, filled evenly."""
    rows = [row for item in batch.items for row in zip(item.lengths, item.places, strict=True)]
    rows.sort(key=lambda row: (-row[0], row[1]))
    tokens = sum(length for length, _ in rows)
    best = batch.layout
    area = len(best) * round_up(batch.length - min(batch.free), multiple)
    fewest = -(-tokens // batch.length)
    for count in range(fewest, min(fewest + MORE_SEQUENCES, len(rows)) + 1):
        if area <= tokens * (1 + GOOD_ENOUGH):
            break
        layout: Layout = [[] for _ in range(count)]
        loads = [(0, number) for number in range(count)]  # a heap
        for length, place in rows:
            load, number = loads[0]
            layout[number].append(place)
            heapq.heapreplace(loads, (load + length, number))
        longest = max(load for load, _ in loads)
        if longest <= batch.length and count * round_up(longest, multiple) < area:
            best, area = layout, count * round_up(longest, multiple)
    return best


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
