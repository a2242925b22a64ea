"""From episodes to model inputs and back: samples, micro-batches and the layout that a loss sees.

A model wants rectangles of tokens; a loss wants one line per episode. `pack` makes the rectangles (padded or
packed), and each `MicroBatch` carries the indices that bring per-token values into the loss layout
`(episodes, tokens)`. No loss ever learns how its tokens were packed.

Letters in shapes: B sequences of a micro-batch, L tokens of a sequence, E episodes, T targets of an episode,
N sampled targets of the micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from forge_env.errors import InvariantError

if TYPE_CHECKING:
    from forge_env.episode import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One episode as the trainer sees it, e.g. `Sample(rows=(row,), advantage=0.5)`."""

    rows: tuple[Row, ...]
    """The episode's training rows, in order."""
    advantage: float = 0.0
    """The episode's advantage, the same for every token."""
    ref_logprobs: tuple[float, ...] | None = None
    """The reference model's logprobs, one per sampled target, as `TitanTrainer.logprobs` returns them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass needs, and the way from its values to the loss layout."""

    samples: tuple[int, ...]
    """Which sample each line of the loss layout is: indices into the list given to `pack`."""
    tokens: Tensor
    """(B, L) int64 model input."""
    positions: Tensor | None
    """(B, L) int64, 0 where a row starts; None when every sequence is one row from its first token on."""
    source: Tensor
    """(E, T) int64 place in the flattened (B, L) whose output predicts this target, -1 where there is none."""
    selected: Tensor
    """(N,) int64 places in the flattened (B, L) that predict sampled targets, in loss order."""
    slots: Tensor
    """(N,) int64 places in the flattened (E, T) of the sampled targets, in loss order."""
    targets: Tensor
    """(N,) int64 sampled token ids."""
    padding_mask: Tensor
    """(E, T) bool, True on the targets that count: sampled, with a finite generator logprob."""
    generator_logprobs: Tensor
    """(E, T) float32, 0 wherever `padding_mask` is False."""
    ref_logprobs: Tensor | None
    """(E, T) float32, or None when a sample of the batch has none."""
    advantages: Tensor
    """(E, 1) float32."""

    def to_loss(self, values: Tensor) -> Tensor:
        """Bring values of every model token, (B, L), into the loss layout, (E, T); zero where there is no target."""
        picked = values.flatten()[self.source.clamp(min=0)]
        return torch.where(self.source >= 0, picked, torch.zeros_like(picked))

    def scatter(self, values: Tensor) -> Tensor:
        """Bring values of the sampled targets only, (N,), into the loss layout, (E, T); zero elsewhere."""
        flat = torch.zeros(self.source.numel(), dtype=values.dtype, device=values.device)
        return flat.index_copy(0, self.slots, values).view(self.source.shape)

    def split(self, values: Tensor) -> list[list[float]]:
        """Cut values of the sampled targets, (N,), into one list per episode of the batch."""
        sizes = torch.bincount(self.slots // self.source.shape[1], minlength=len(self.samples))
        return [part.tolist() for part in values.split(sizes.tolist())]

    @property
    def units(self) -> tuple[int, int]:
        """Valid tokens, and episodes that have any: what losses are divided by."""
        return int(self.padding_mask.sum()), int(self.padding_mask.any(-1).sum())

    def to(self, device: torch.device) -> MicroBatch:
        """Return the same micro-batch on `device`."""
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **moved)


class _Line(NamedTuple):
    """One row, cut to what the model has to read: the inputs up to the last sampled token."""

    sample: int
    row: int
    inputs: np.ndarray  # (n,) int64
    targets: np.ndarray  # (n,) int64, the token after each input
    sampled: np.ndarray  # (n,) bool, on targets
    generator: np.ndarray  # (n,) float32, on targets


_Plan = list[list[_Line]]  # the sequences of one micro-batch, each holding rows one after the other


def pack(
    samples: Sequence[Sample], *, max_tokens: int, pack_length: int, pad_id: int, multiple: int = 1
) -> list[MicroBatch]:
    """Lay samples out as micro-batches of at most `max_tokens` model tokens.

    With `pack_length` 0 each row is a sequence of its own, padded on the right; otherwise rows share sequences of
    up to `pack_length` tokens and `positions` restart at each row. An episode's rows stay in one micro-batch, so
    one episode larger than `max_tokens` (or one row longer than `pack_length`) gets what it needs. Sequence lengths
    are rounded up to `multiple`. What nothing is learned from is left out: tokens after a row's last sampled one,
    rows and episodes without a sampled target. A row's first token is never a target.

    Raises:
        InvariantError: a row whose fields differ in length, or `ref_logprobs` not one per sampled target.
    """
    episodes = [lines for index, sample in enumerate(samples) if (lines := _lines(index, sample))]
    plan = _plan_packed if pack_length else _plan_padded
    plans = plan(episodes, max_tokens=max_tokens, length=pack_length, multiple=multiple)
    packed = bool(pack_length)
    return [_build(samples, sequences, pad_id=pad_id, multiple=multiple, packed=packed) for sequences in plans]


def empty_batch(length: int) -> MicroBatch:
    """A micro-batch of one sequence of padding and no samples, for a rank that has run out of its own."""
    index = torch.zeros(1, dtype=torch.int64)
    zero = torch.zeros((1, 1))
    return MicroBatch(
        samples=(),
        tokens=torch.zeros((1, length), dtype=torch.int64),
        positions=None,
        source=index[None],
        selected=index,
        slots=index,
        targets=index,
        padding_mask=torch.zeros((1, 1), dtype=torch.bool),
        generator_logprobs=zero,
        ref_logprobs=None,
        advantages=zero,
    )


def partition(samples: Sequence[Sample], parts: int) -> list[list[int]]:
    """Share samples out to `parts` ranks, as index lists with nearly the same number of tokens.

    Largest first to the least loaded rank. The same input gives the same answer on every rank.
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    sizes = [sum(len(row.token_ids) for row in sample.rows) for sample in samples]
    for index in sorted(range(len(samples)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += sizes[index]
    return [sorted(share) for share in shares]


def _lines(index: int, sample: Sample) -> list[_Line]:
    lines = [line for number, row in enumerate(sample.rows) if (line := _line(index, number, row)) is not None]
    sampled = sum(int(line.sampled.sum()) for line in lines)
    if sample.ref_logprobs is not None and len(sample.ref_logprobs) != sampled:
        raise InvariantError(
            f"sample {index} has {len(sample.ref_logprobs)} ref_logprobs for {sampled} sampled targets"
        )
    return lines


def _line(index: int, number: int, row: Row) -> _Line | None:
    if not len(row.token_ids) == len(row.mask) == len(row.logprobs):
        raise InvariantError(f"row {number} of sample {index} has token_ids, mask and logprobs of different lengths")
    sampled = np.asarray(row.mask[1:], dtype=bool)
    if not sampled.any():
        return None
    end = int(np.flatnonzero(sampled)[-1]) + 1  # attention is causal: later tokens change nothing
    ids = np.asarray(row.token_ids[: end + 1], dtype=np.int64)
    generator = np.asarray(row.logprobs[1 : end + 1], dtype=np.float32)
    return _Line(index, number, ids[:-1], ids[1:], sampled[:end], generator)


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _plan_padded(episodes: list[list[_Line]], *, max_tokens: int, length: int, multiple: int) -> list[_Plan]:
    """One row per sequence; episodes sorted by their longest row, so that neighbours need little padding."""
    plans: list[_Plan] = []
    longest = 0
    for lines in sorted(episodes, key=lambda lines: -max(len(line.inputs) for line in lines)):
        if not plans or (len(plans[-1]) + len(lines)) * longest > max_tokens:
            plans.append([])
            longest = _round_up(max(len(line.inputs) for line in lines), multiple)
        plans[-1].extend([line] for line in lines)
    return plans


def _plan_packed(episodes: list[list[_Line]], *, max_tokens: int, length: int, multiple: int) -> list[_Plan]:
    """Several rows per sequence: each episode goes to the first micro-batch that has room for all its rows."""
    longest_row = max((len(line.inputs) for lines in episodes for line in lines), default=0)
    length = _round_up(max(length, longest_row), multiple)
    most = max(1, max_tokens // length)
    plans: list[_Plan] = []
    for lines in sorted(episodes, key=lambda lines: -sum(len(line.inputs) for line in lines)):
        for number, plan in enumerate(plans):
            if (grown := _fit(plan, lines, length=length, most=most)) is not None:
                plans[number] = grown
                break
        else:
            plans.append(_fit([], lines, length=length, most=None) or [])
    return plans


def _fit(plan: _Plan, lines: list[_Line], *, length: int, most: int | None) -> _Plan | None:
    """Return the plan with these rows placed first-fit, or None when it would need more than `most` sequences."""
    grown = [list(sequence) for sequence in plan]
    used = [sum(len(line.inputs) for line in sequence) for sequence in grown]
    for line in lines:
        place = next((i for i, taken in enumerate(used) if taken + len(line.inputs) <= length), None)
        if place is None:
            if most is not None and len(grown) >= most:
                return None
            place = len(grown)
            grown.append([])
            used.append(0)
        grown[place].append(line)
        used[place] += len(line.inputs)
    return grown


def _build(samples: Sequence[Sample], plan: _Plan, *, pad_id: int, multiple: int, packed: bool) -> MicroBatch:
    length = _round_up(max(sum(len(line.inputs) for line in sequence) for sequence in plan), multiple)
    tokens = np.full((len(plan), length), pad_id, dtype=np.int64)
    positions = np.zeros((len(plan), length), dtype=np.int64)
    placed: dict[int, list[tuple[int, _Line]]] = {}  # sample -> its rows with the place of their first input
    for number, sequence in enumerate(plan):
        offset = 0
        for line in sequence:
            end = offset + len(line.inputs)
            tokens[number, offset:end] = line.inputs
            positions[number, offset:end] = np.arange(len(line.inputs))
            placed.setdefault(line.sample, []).append((number * length + offset, line))
            offset = end
        positions[number, offset:] = np.arange(length - offset)  # the padding is a document of its own
    return _to_tensors(samples, placed, tokens, positions if packed else None)


def _to_tensors(
    samples: Sequence[Sample],
    placed: dict[int, list[tuple[int, _Line]]],
    tokens: np.ndarray,
    positions: np.ndarray | None,
) -> MicroBatch:
    order = tuple(sorted(placed))
    shape = (len(order), max(sum(len(line.inputs) for _, line in placed[index]) for index in order))
    source = np.full(shape, -1, dtype=np.int64)
    targets = np.zeros(shape, dtype=np.int64)
    sampled = np.zeros(shape, dtype=bool)
    generator = np.zeros(shape, dtype=np.float32)
    for episode, index in enumerate(order):
        start = 0
        for place, line in sorted(placed[index], key=lambda item: item[1].row):
            span = slice(start, start + len(line.inputs))
            source[episode, span] = np.arange(place, place + len(line.inputs))
            targets[episode, span] = line.targets
            sampled[episode, span] = line.sampled
            generator[episode, span] = line.generator
            start = span.stop
    # A sampled token whose generator logprob is not finite has no ratio: it leaves the mask and every count.
    mask = sampled & np.isfinite(generator)
    slots = np.flatnonzero(sampled)
    return MicroBatch(
        samples=order,
        tokens=torch.from_numpy(tokens),
        positions=None if positions is None else torch.from_numpy(positions),
        source=torch.from_numpy(source),
        selected=torch.from_numpy(source.ravel()[slots]),
        slots=torch.from_numpy(slots),
        targets=torch.from_numpy(targets.ravel()[slots]),
        padding_mask=torch.from_numpy(mask),
        generator_logprobs=torch.from_numpy(np.where(mask, generator, np.float32(0))),
        ref_logprobs=_ref_logprobs([samples[index] for index in order], shape, slots),
        advantages=torch.tensor([[samples[index].advantage] for index in order], dtype=torch.float32),
    )


def _ref_logprobs(samples: list[Sample], shape: tuple[int, int], slots: np.ndarray) -> Tensor | None:
    values: list[float] = []
    for sample in samples:
        if sample.ref_logprobs is None:
            return None
        values.extend(sample.ref_logprobs)
    laid_out = np.zeros(shape[0] * shape[1], dtype=np.float32)
    laid_out[slots] = values
    return torch.from_numpy(laid_out.reshape(shape))
