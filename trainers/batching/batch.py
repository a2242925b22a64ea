"""From episodes to model inputs and back: samples, micro-batches and the layout that a loss sees.

The way of a token: `Episode.rows` -> `Sample`, the rows of one episode with its advantage -> `MicroBatch`.

A model reads rectangles of tokens; a loss reads one row of values per episode. `pack` makes the rectangles (padded or
packed, as `trainers.batching.packing` plans them), and each `MicroBatch` carries the indices that bring per-token
values into the loss layout `(episodes, tokens)`. A loss does not depend on how its tokens were packed, nor on the
number of ranks.

If the rows of an episode do not fit into one micro-batch, it is split over several, perhaps of several ranks. A loss
sees complete episodes, so it cannot be called on these micro-batches: see `trainers.titan.backward`.

Letters in shapes: B sequences of a micro-batch, L tokens of a sequence, E episodes, T targets of an episode,
N sampled targets of the micro-batch, K experts that compute a token in a layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from forge_env.core.errors import InvariantError
from forge_env.core.tokens import FLOATS, IDS, SINGLES, TokenRecord, array_of
from trainers.batching.packing import DEFAULT_CROSSOVER, Layout, plan_packed, plan_padded, round_up
from trainers.batching.routes import routes_shape, write_routes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from forge_env.core.episode import Row

UNTAUGHT = 1.0
"""In the place of a teacher's logprobs where no teacher judges; no logprob is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample(TokenRecord):
    """One episode as the trainer sees it, e.g. `Sample(rows=(row,), advantage=0.5)`."""

    ARRAYS: ClassVar[Mapping[str, np.dtype]] = {
        "advantage": FLOATS,
        "reference_logprobs": SINGLES,
        "old_logprobs": SINGLES,
        "teacher_ids": IDS,
        "teacher_logprobs": SINGLES,
    }

    rows: tuple[Row, ...]
    """The episode's training rows, in order."""
    advantage: float | np.ndarray = 0.0
    """The episode's advantage, the same for every token; or one per sampled target, in row order: float64."""
    reference_logprobs: np.ndarray | None = None
    """float32: the reference model's logprobs, one per sampled target, as `TitanTrainer.logprobs` returns them."""
    old_logprobs: np.ndarray | None = None
    """float32: the trainer's own logprobs of the weights before the step, or before the first step of a window."""
    teacher_ids: np.ndarray | None = None
    """int32: the tokens that a teacher finds most likely at each sampled target, K after K; the same K in each step."""
    teacher_logprobs: np.ndarray | None = None
    """float32: their logprobs by the teacher."""

    def __post_init__(self) -> None:
        for name, kind in self.ARRAYS.items():
            if _is_per_target(values := getattr(self, name)):
                object.__setattr__(self, name, array_of(values, kind, name))

    @property
    def has_advantage(self) -> bool:
        """Whether any token's advantage is not 0."""
        return bool(np.any(self.advantage) if isinstance(self.advantage, np.ndarray) else self.advantage)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is learned from it by a loss that needs an advantage."""
        return not self.has_advantage and self.teacher_ids is None

    @property
    def units(self) -> tuple[int, int]:
        """Valid tokens, and 1 if it has any: its part of the `units` of a `MicroBatch`."""
        tokens = 0
        for row in self.rows:
            is_valid = row.loss_mask & np.isfinite(row.generator_logprobs)
            tokens += int(np.count_nonzero(is_valid[1:]))
        return tokens, int(tokens > 0)

    @property
    def num_targets(self) -> int:
        """How many sampled targets it has, in all of its rows."""
        return sum(int(np.count_nonzero(row.loss_mask[1:])) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass needs, and the way from its values to the loss layout."""

    samples: tuple[int, ...]
    """Which sample each episode of the loss layout is: indices into the list given to `pack`."""
    tokens: Tensor
    """(B, L) int64 model input."""
    positions: Tensor | None
    """(B, L) int64, 0 where a row starts; None when every sequence is one row from its first token on."""
    starts: Tensor | None = None
    """(rows + 1,) int32 places in the flattened (B, L) where rows start, padding counted as one of its sequence, and
    B x L; None as `positions`."""
    longest: int = 0
    """The most tokens between two of `starts`."""
    source: Tensor
    """(E, T) int64: the place in the flattened (B, L) whose output predicts this target, -1 if there is no target."""
    selected: Tensor
    """(N,) int64 places in the flattened (B, L) that predict sampled targets, in loss order."""
    slots: Tensor
    """(N,) int64 places in the flattened (E, T) of the sampled targets, in loss order."""
    targets: Tensor
    """(N,) int64 token ids of the sampled targets. With a teacher's K tokens (N, 1 + K), which follow the target."""
    target_index: Tensor
    """(N,) int64: each sampled target's number among the targets of all samples given to `pack`, in order of sample and
    row."""
    loss_mask: Tensor
    """(E, T) bool, True on the targets that count: sampled, with a finite generator logprob."""
    generator_logprobs: Tensor
    """(E, T) float32, 0 wherever `loss_mask` is False."""
    reference_logprobs: Tensor | None
    """(E, T) float32, or None unless every sample given to `pack` has them."""
    old_logprobs: Tensor | None
    """(E, T) float32, or None unless every sample given to `pack` has them."""
    advantages: Tensor
    """(E, 1) float32; (E, T) where a sample of the batch has one for each of its targets."""
    units: tuple[int, int]
    """Valid tokens, and episodes that have any: what losses are divided by. A split episode counts where its first row
    is."""
    is_part: bool = False
    """Whether it holds rows of a split episode; the loss layout is then of the rows that are here, and no loss is to be
    called on it."""
    routes: Tensor | None = None
    """(B, L, layers, K) int16 numbers of the experts that compute each token, -1 if the router chooses them: in
    padding, and if the engine returned none. None if no row has any, or they are not asked for."""
    teacher_logprobs: Tensor = field(default_factory=lambda: tensor_of(np.zeros((0, 0), dtype=np.float32)))
    """(N, K) float32: the teacher's of its K tokens."""
    rows_read: tuple[int, int] = (0, 0)
    """With `routes`: the number of tokens without the padding, and of those for which the router chooses the
    experts."""

    @property
    def depths(self) -> Tensor:
        """(E, T) int64: the number of tokens of its row that each target is predicted from; nothing if there is no
        target."""
        places = self.source.clamp(min=0)
        before = places % self.tokens.shape[1] if self.positions is None else self.positions.flatten()[places]
        return before + 1

    def scatter(self, values: Tensor) -> Tensor:
        """Bring values of the sampled targets only, (N,), into the loss layout, (E, T); zero elsewhere."""
        flat = values.new_zeros(self.source.numel())
        return flat.index_copy(0, self.slots, values).view(self.source.shape)

    def to(self, device: torch.device) -> MicroBatch:
        """Return the same micro-batch on `device`."""
        tensors: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), type(self.tokens))
        }
        return dataclasses.replace(self, **tensors)


_OPTIONAL = ("reference_logprobs", "old_logprobs")


def by_sample(samples: Sequence[Sample], values: Tensor) -> list[np.ndarray]:
    """Cut values of all sampled targets, in the order of `target_index`, into one array for each sample."""
    return [part.numpy().copy() for part in values.cpu().split([sample.num_targets for sample in samples])]


class _Read(NamedTuple):
    """A sample, and what the model reads of it."""

    sample: Sample
    lengths: list[int]  # inputs of each row
    counts: list[int]  # sampled targets of each row
    start: int  # the number of its first sampled target

    @property
    def rows(self) -> list[int]:
        return [row for row, length in enumerate(self.lengths) if length]

    def targets(self, rows: Sequence[int]) -> np.ndarray:
        ends = [0, *accumulate(self.counts)]
        return np.concatenate([np.arange(ends[row], ends[row + 1]) for row in rows])


class _Format(NamedTuple):
    """What all micro-batches of a call have in common."""

    pad_id: int
    multiple: int
    packed: bool
    optional: frozenset[str]  # which of `_OPTIONAL` all samples have
    routes: tuple[int, int] | None  # layers and active experts


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
    with_routes: bool = False,
) -> list[MicroBatch]:
    """Lay one rank's share of the samples out as micro-batches of at most `max_tokens` model tokens.

    With `pack_length` 0 each row is a sequence of its own, padded on the right; otherwise rows share sequences of
    up to `pack_length` tokens and `positions` restart at each row. An episode's rows stay in one micro-batch if it can
    hold them. Otherwise the episode is split, and `MicroBatch.is_part` is true of the micro-batches with its rows. A
    row longer than `max_tokens` or `pack_length` gets what it needs. Sequence lengths are rounded up to `multiple`.
    What nothing is learned from is left out: tokens after a row's last target, rows and episodes without a target.
    Targets are the sampled tokens; a row's first token is never one.

    Packing pays where attention skips what a document does not see (flex, varlen). With the dense mask of the CPU it
    costs the square of the sequence: a model of 2 layers and width 128 on 64 rows of 60 to 140 tokens took 4.1 times
    as long packed to 4096 tokens as padded, 1.1 times at 512, 0.9 times at 256.

    Every rank gives the same samples and gets its own micro-batches of one common plan, which balances FLOPs in each
    round of the ranks (see `trainers.batching.packing`).

    `with_routes` says whether the micro-batches have the experts that the engine chose, if any row has them.
    """
    reads: list[_Read] = []
    for index, sample in enumerate(samples):
        start = reads[-1].start + sum(reads[-1].counts) if reads else 0
        reads.append(_Read(sample, *_lengths(index, sample), start))
    lengths = [read.lengths for read in reads]
    limits: dict[str, Any] = {"max_tokens": max_tokens, "multiple": multiple, "ranks": ranks, "crossover": crossover}
    if pack_length:
        layouts = plan_packed(lengths, pack_length=pack_length, **limits)[rank]
    else:
        layouts = plan_padded(lengths, **limits)[rank]
    # Decided over all samples, so that a loss sees the same whatever the micro-batches are.
    samples_with_targets = [read.sample for read in reads if any(read.counts)]
    optional = frozenset(
        name for name in _OPTIONAL if all(getattr(sample, name) is not None for sample in samples_with_targets)
    )
    routes = routes_shape(row for sample in samples for row in sample.rows) if with_routes else None
    format_ = _Format(pad_id=pad_id, multiple=multiple, packed=bool(pack_length), optional=optional, routes=routes)
    return [_build(reads, layout, format_) for layout in layouts]


def _lengths(index: int, sample: Sample) -> tuple[list[int], list[int]]:
    """Of each row, how many inputs the model has to read, those up to the last target; and its sampled targets."""
    lengths, counts = [], []
    for number, row in enumerate(sample.rows):
        if not len(row.token_ids) == len(row.loss_mask) == len(row.generator_logprobs):
            lengths_differ = "has token_ids, loss_mask and generator_logprobs of different lengths"
            raise InvariantError(f"row {number} of sample {index} {lengths_differ}")
        (targets,) = row.loss_mask[1:].nonzero()
        counts.append(len(targets))
        # Attention is causal: later tokens change nothing.
        lengths.append(int(targets[-1]) + 1 if len(targets) else 0)
    sampled = sum(counts)
    for name in ("advantage", *_OPTIONAL):
        values = getattr(sample, name)
        if _is_per_target(values) and len(values) != sampled:
            raise InvariantError(f"sample {index} has {len(values)} values of {name} for {sampled} sampled targets")
    return lengths, counts


class _Written(NamedTuple):
    """The rows of a layout, each at its two places: in a sequence of the model, (B, L), and in its episode's loss row,
    (E, T)."""

    tokens: np.ndarray  # (B, L)
    positions: np.ndarray  # (B, L)
    routes: np.ndarray | None  # (B, L, layers, K)
    holes: int  # tokens without routes
    source: np.ndarray  # (E, T)
    targets: np.ndarray  # (E, T)
    sampled: np.ndarray  # (E, T)
    generator_logprobs: np.ndarray  # (E, T)


def _write(reads: Sequence[_Read], layout: Layout, format_: _Format, rows_of: Mapping[int, Sequence[int]]) -> _Written:
    longest = max(sum(reads[sample].lengths[row] for sample, row in sequence) for sequence in layout)
    B, L = len(layout), round_up(longest, format_.multiple)
    tokens = np.full((B, L), format_.pad_id, dtype=np.int64)
    positions = np.zeros((B, L), dtype=np.int64)
    routes = None if format_.routes is None else np.full((B, L, *format_.routes), -1, dtype=np.int16)
    holes = 0
    episode_of = {sample: episode for episode, sample in enumerate(rows_of)}
    shape = len(rows_of), max(sum(reads[s].lengths[row] for row in rows) for s, rows in rows_of.items())  # (E, T)
    source = np.full(shape, -1, dtype=np.int64)
    targets = np.zeros(shape, dtype=np.int64)
    sampled = np.zeros(shape, dtype=bool)
    generator_logprobs = np.zeros(shape, dtype=np.float32)
    for number, sequence in enumerate(layout):
        start = 0
        for sample, row_number in sequence:
            lengths = reads[sample].lengths
            row, n = reads[sample].sample.rows[row_number], lengths[row_number]
            inputs = number, slice(start, start + n)  # of (B, L)
            tokens[inputs] = row.token_ids[:n]
            positions[inputs] = np.arange(n)
            if routes is not None:
                holes += write_routes(row, routes[inputs])
            first = sum(lengths[before] for before in rows_of[sample] if before < row_number)
            outputs = episode_of[sample], slice(first, first + n)  # of (E, T)
            source[outputs] = np.arange(n) + (number * L + start)
            targets[outputs] = row.token_ids[1 : n + 1]
            sampled[outputs] = row.loss_mask[1 : n + 1]
            generator_logprobs[outputs] = row.generator_logprobs[1 : n + 1]
            start += n
        positions[number, start:] = np.arange(L - start)  # the padding is a document of its own
    return _Written(tokens, positions, routes, holes, source, targets, sampled, generator_logprobs)


def _build(reads: Sequence[_Read], layout: Layout, format_: _Format) -> MicroBatch:
    rows_of: dict[int, list[int]] = {}  # by sample; both in order
    for sample, row in sorted(place for sequence in layout for place in sequence):
        rows_of.setdefault(sample, []).append(row)
    rows = _write(reads, layout, format_, rows_of)
    # If the generator logprob of a sampled token is not finite, it has no ratio: it leaves the mask and every count.
    loss_mask = rows.sampled & np.isfinite(rows.generator_logprobs)
    slots = np.flatnonzero(rows.sampled)
    here = {sample: reads[sample].targets(numbers) for sample, numbers in rows_of.items()}
    values: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    for name in format_.optional:
        own = [_here(reads[s], name, places) for s, places in here.items()]
        # Each episode's values of its sampled targets, as (E, T), zero elsewhere.
        flat = np.zeros(loss_mask.shape[0] * loss_mask.shape[1], dtype=np.float32)
        flat[slots] = np.concatenate(own)
        values[name] = tensor_of(flat.reshape(loss_mask.shape))
    targets = rows.targets.ravel()[slots]
    teacher_ids, teacher_logprobs = _of_teachers(reads, here)
    if teacher_ids.shape[1]:
        targets = np.column_stack([targets, teacher_ids])
    starts = np.append(np.flatnonzero(rows.positions == 0), rows.positions.size)
    is_valid = zip(rows_of.items(), loss_mask.any(-1), strict=True)
    read = sum(reads[s].lengths[row] for sequence in layout for s, row in sequence)
    return MicroBatch(
        samples=tuple(rows_of),
        tokens=tensor_of(rows.tokens),
        positions=tensor_of(rows.positions) if format_.packed else None,
        starts=tensor_of(starts.astype(np.int32)) if format_.packed else None,
        longest=int(np.diff(starts).max()),
        source=tensor_of(rows.source),
        selected=tensor_of(rows.source.ravel()[slots]),
        slots=tensor_of(slots),
        targets=tensor_of(targets),
        teacher_logprobs=tensor_of(teacher_logprobs),
        target_index=tensor_of(np.concatenate([reads[s].start + places for s, places in here.items()])),
        loss_mask=tensor_of(loss_mask),
        generator_logprobs=tensor_of(np.where(loss_mask, rows.generator_logprobs, np.float32(0))),
        advantages=_advantages([_here(reads[s], "advantage", places) for s, places in here.items()], rows.sampled),
        units=(
            int(np.count_nonzero(loss_mask)),
            sum(_is_counted(reads[s], numbers, bool(valid)) for (s, numbers), valid in is_valid),
        ),
        is_part=any(numbers != reads[s].rows for s, numbers in rows_of.items()),
        routes=None if rows.routes is None else tensor_of(rows.routes),
        rows_read=(0, 0) if rows.routes is None else (read, rows.holes),
        **values,
    )


def _is_counted(read: _Read, rows: list[int], is_valid: bool) -> bool:
    """Whether an episode counts in the micro-batch that has these rows of it, where `is_valid` says whether one of
    their tokens is valid."""
    if rows == read.rows:
        return is_valid
    return rows[0] == read.rows[0] and bool(read.sample.units[1])


def _here(read: _Read, name: str, targets: np.ndarray) -> Any:
    """A sample's value of that name; if it has one value for each sampled target, the values of the chosen targets."""
    values = getattr(read.sample, name)
    return np.asarray(values, dtype=np.float32)[targets] if _is_per_target(values) else values


def _of_teachers(reads: Sequence[_Read], here: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The ids and logprobs (N, K) of teachers' tokens at the chosen targets of samples; K is 0 without a teacher."""
    ids_of = {s: (reads[s].sample.teacher_ids, max(sum(reads[s].counts), 1)) for s in here}
    count = max((len(ids) // targets for ids, targets in ids_of.values() if ids is not None), default=0)
    all_ids, all_logprobs = [], []
    for s, targets in here.items():
        ids, logprobs, total = reads[s].sample.teacher_ids, reads[s].sample.teacher_logprobs, sum(reads[s].counts)
        if ids is None or logprobs is None:
            ids = np.zeros((total, count), dtype=np.int64)
            logprobs = np.full(ids.shape, UNTAUGHT, dtype=np.float32)
        all_ids.append(ids.reshape(total, -1)[targets].astype(np.int64))
        all_logprobs.append(logprobs.reshape(total, -1)[targets])
    return np.concatenate(all_ids), np.concatenate(all_logprobs)


def _is_per_target(values: Any) -> bool:
    """Whether there is one value for each sampled target: neither one for all of them, nor none."""
    return not isinstance(values, float | None) and isinstance(values, Sequence | np.ndarray)  # the latter is slow


def _advantages(values: list[float | np.ndarray], sampled: np.ndarray) -> Tensor:
    """(E, 1), or (E, T) where an episode has one advantage for each of its sampled targets."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return tensor_of(np.array(values, dtype=np.float32)[:, None])
    advantages = np.zeros(sampled.shape, dtype=np.float32)
    for episode, (is_sampled, value) in enumerate(zip(sampled, values, strict=True)):
        advantages[episode, is_sampled] = value
    return tensor_of(advantages)


def tensor_of(values: np.ndarray) -> Tensor:
    """A tensor with the memory of an array."""
    import torch  # slow import, which a controller and a plan do without

    return torch.from_numpy(values)
