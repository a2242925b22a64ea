"""From episodes to model inputs and back: samples, micro-batches and the layout that a loss sees.

A model wants rectangles of tokens; a loss wants one line per episode. `pack` makes the rectangles (padded or
packed, as `trainers.batching.packing` plans them), and each `MicroBatch` carries the indices that bring per-token
values into the loss layout `(episodes, tokens)`. No loss ever learns how its tokens were packed, or who else trains.

Letters in shapes: B sequences of a micro-batch, L tokens of a sequence, E episodes, T targets of an episode,
N sampled targets of the micro-batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from forge_env.core.errors import InvariantError
from trainers.batching.packing import DEFAULT_CROSSOVER, Layout, plan_packed, plan_padded, round_up

if TYPE_CHECKING:
    from forge_env.core.episode import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One episode as the trainer sees it, e.g. `Sample(rows=(row,), advantage=0.5)`."""

    rows: tuple[Row, ...]
    """The episode's training rows, in order."""
    advantage: float | tuple[float, ...] = 0.0
    """The episode's advantage, the same for every token; or one per sampled target."""
    ref_logprobs: tuple[float, ...] | None = None
    """The reference model's logprobs, one per sampled target, as `TitanTrainer.logprobs` returns them."""
    old_logprobs: tuple[float, ...] | None = None
    """The trainer's own logprobs of the weights before the step, or before the first step of a window, likewise."""

    @property
    def has_advantage(self) -> bool:
        """Whether any token's advantage is not 0."""
        return any(self.advantage) if isinstance(self.advantage, tuple) else bool(self.advantage)

    @property
    def units(self) -> tuple[int, int]:
        """Valid tokens, and 1 if it has any: its part of the `units` of a `MicroBatch`."""
        tokens = sum(
            sampled and math.isfinite(logprob)
            for row in self.rows
            for sampled, logprob in zip(row.mask[1:], row.logprobs[1:], strict=False)
        )
        return tokens, int(tokens > 0)


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
    """(E, T) float32, or None unless every sample given to `pack` has them."""
    old_logprobs: Tensor | None
    """(E, T) float32, or None unless every sample given to `pack` has them."""
    advantages: Tensor
    """(E, 1) float32; (E, T) where a sample of the batch has one for each of its targets."""
    units: tuple[int, int]
    """Valid tokens, and episodes that have any: what losses are divided by."""

    def scatter(self, values: Tensor) -> Tensor:
        """Bring values of the sampled targets only, (N,), into the loss layout, (E, T); zero elsewhere."""
        flat = torch.zeros(self.source.numel(), dtype=values.dtype, device=values.device)
        return flat.index_copy(0, self.slots, values).view(self.source.shape)

    def split(self, values: Tensor) -> list[list[float]]:
        """Cut values of the sampled targets, (N,), into one list per episode of the batch."""
        sizes = torch.bincount(self.slots // self.source.shape[1], minlength=len(self.samples))
        return [part.tolist() for part in values.split(sizes.tolist())]

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


_EXTRA = ("ref_logprobs", "old_logprobs")


class _Format(NamedTuple):
    """What all micro-batches of a call have in common."""

    pad_id: int
    multiple: int
    packed: bool
    extra: frozenset[str]  # the optional values that all samples have


def pack(
    samples: Sequence[Sample],
    *,
    max_tokens: int,
    pack_length: int,
    pad_id: int,
    multiple: int = 1,
    rank: int = 0,
    ranks: int = 1,
    crossover: float = DEFAULT_CROSSOVER,
) -> list[MicroBatch]:
    """Lay one rank's share of the samples out as micro-batches of at most `max_tokens` model tokens.

    With `pack_length` 0 each row is a sequence of its own, padded on the right; otherwise rows share sequences of
    up to `pack_length` tokens and `positions` restart at each row. An episode's rows stay in one micro-batch, so
    one episode larger than `max_tokens` (or one row longer than `pack_length`) gets what it needs. Sequence lengths
    are rounded up to `multiple`. What nothing is learned from is left out: tokens after a row's last sampled one,
    rows and episodes without a sampled target. A row's first token is never a target.

    Packing pays where attention skips what a document does not see (flex, varlen). With the dense mask of the CPU it
    costs the square of the sequence: a model of 2 layers and width 128 on 64 rows of 60 to 140 tokens took 4.1 times
    as long packed to 4096 tokens as padded, 1.1 times at 512, 0.9 times at 256.

    Every rank gives the same samples and gets its own micro-batches of one common plan, which balances FLOPs in each
    round of the ranks (see `trainers.batching.packing`).

    Raises:
        InvariantError: a row whose fields differ in length, or values that are not one per sampled target. All
            ranks find it, whoever would have got the sample.
    """
    lengths = [_lengths(index, sample) for index, sample in enumerate(samples)]
    limits: dict[str, Any] = {"max_tokens": max_tokens, "multiple": multiple, "ranks": ranks, "crossover": crossover}
    if pack_length:
        layouts = plan_packed(lengths, pack_length=pack_length, **limits)[rank]
    else:
        layouts = plan_padded(lengths, **limits)[rank]
    # Decided over all samples, so that a loss sees the same whatever the micro-batches are.
    learned = [sample for sample, rows in zip(samples, lengths, strict=True) if any(rows)]
    extra = frozenset(name for name in _EXTRA if all(getattr(sample, name) is not None for sample in learned))
    format_ = _Format(pad_id=pad_id, multiple=multiple, packed=bool(pack_length), extra=extra)
    return [_build(samples, layout, format_) for layout in layouts]


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
        old_logprobs=None,
        advantages=zero,
        units=(0, 0),
    )


def _lengths(index: int, sample: Sample) -> list[int]:
    """How many inputs the model has to read of each row: those up to the last sampled token."""
    lengths, sampled = [], 0
    for number, row in enumerate(sample.rows):
        if not len(row.token_ids) == len(row.mask) == len(row.logprobs):
            lengths_differ = "has token_ids, mask and logprobs of different lengths"
            raise InvariantError(f"row {number} of sample {index} {lengths_differ}")
        targets = row.mask[1:]
        sampled += sum(targets)
        # Attention is causal: later tokens change nothing.
        lengths.append(next((n for n in range(len(targets), 0, -1) if targets[n - 1]), 0))
    for name in ("advantage", *_EXTRA):
        values = getattr(sample, name)
        if isinstance(values, tuple) and len(values) != sampled:
            raise InvariantError(f"sample {index} has {len(values)} values of {name} for {sampled} sampled targets")
    return lengths


def _line(samples: Sequence[Sample], sample: int, number: int) -> _Line:
    row = samples[sample].rows[number]
    sampled = np.asarray(row.mask[1:], dtype=bool)
    end = int(np.flatnonzero(sampled)[-1]) + 1
    ids = np.asarray(row.token_ids[: end + 1], dtype=np.int64)
    generator = np.asarray(row.logprobs[1 : end + 1], dtype=np.float32)
    return _Line(sample, number, ids[:-1], ids[1:], sampled[:end], generator)


def _build(samples: Sequence[Sample], layout: Layout, format_: _Format) -> MicroBatch:
    sequences = [[_line(samples, *place) for place in sequence] for sequence in layout]
    longest = max(sum(len(line.inputs) for line in sequence) for sequence in sequences)
    shape = len(sequences), round_up(longest, format_.multiple)
    tokens = np.full(shape, format_.pad_id, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    placed: dict[int, list[tuple[int, _Line]]] = {}  # sample -> its rows with the place of their first input
    for number, sequence in enumerate(sequences):
        offset = 0
        for line in sequence:
            end = offset + len(line.inputs)
            tokens[number, offset:end] = line.inputs
            positions[number, offset:end] = np.arange(len(line.inputs))
            placed.setdefault(line.sample, []).append((number * shape[1] + offset, line))
            offset = end
        positions[number, offset:] = np.arange(shape[1] - offset)  # the padding is a document of its own
    return _to_tensors(samples, placed, tokens, positions if format_.packed else None, format_.extra)


def _to_tensors(
    samples: Sequence[Sample],
    placed: dict[int, list[tuple[int, _Line]]],
    tokens: np.ndarray,
    positions: np.ndarray | None,
    extra: frozenset[str],
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
    batch = MicroBatch(
        samples=order,
        tokens=torch.from_numpy(tokens),
        positions=None if positions is None else torch.from_numpy(positions),
        source=torch.from_numpy(source),
        selected=torch.from_numpy(source.ravel()[slots]),
        slots=torch.from_numpy(slots),
        targets=torch.from_numpy(targets.ravel()[slots]),
        padding_mask=torch.from_numpy(mask),
        generator_logprobs=torch.from_numpy(np.where(mask, generator, np.float32(0))),
        advantages=_advantages([samples[index].advantage for index in order], sampled),
        units=(int(np.count_nonzero(mask)), int(np.count_nonzero(mask.any(-1)))),
        ref_logprobs=None,
        old_logprobs=None,
    )
    values: dict[str, Any] = {
        name: _laid_out([getattr(samples[index], name) for index in order], shape, slots) for name in extra
    }
    return dataclasses.replace(batch, **values)


def _laid_out(parts: list[tuple[float, ...]], shape: tuple[int, int], slots: np.ndarray) -> Tensor:
    """Values of the sampled targets in the loss layout, zero elsewhere."""
    laid_out = np.zeros(shape[0] * shape[1], dtype=np.float32)
    laid_out[slots] = [value for part in parts for value in part]
    return torch.from_numpy(laid_out.reshape(shape))


def _advantages(parts: list[float | tuple[float, ...]], sampled: np.ndarray) -> Tensor:
    if not any(isinstance(part, tuple) for part in parts):
        return torch.tensor(parts, dtype=torch.float32)[:, None]
    laid_out = np.zeros(sampled.shape, dtype=np.float32)
    for line, (mask, part) in enumerate(zip(sampled, parts, strict=True)):
        laid_out[line, mask] = part
    return torch.from_numpy(laid_out)
