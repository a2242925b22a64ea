"""torchforge's training batch: read into the samples of our own trainer, so that both take the same step.

    inputs = [{"tokens": (B, S) int64}]
    targets = [{"response": (B, R) int64, "ref_logprobs": (B, R), "advantages": (B, 1), "padding_mask": (B, R)}]

There is one dict for each data-parallel rank. `tokens` is torchforge's `cat([request, response], 1)`: requests padded
on the left to S - R tokens, responses padded on the right to R. The padding of a request is read as plain tokens, as
torchforge does; `padding_mask` is true on the tokens of the response that count. Token i of the response is predicted
at place S - R - 1 + i of `tokens`. `advantages` may also be (B, R), and targets may have "generator_logprobs", (B, R),
of the policy that sampled. Without a reference model, "ref_logprobs" is None.

The trainer computes its usual loss, counted over all rows of all dicts. A row in which no token counts is no episode.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from forge_env.core.episode import Row
from forge_env.core.errors import UserError
from forge_env.core.tokens import FLOATS, IDS, MASK, array_of
from forge_env.core.types import NOT_SAMPLED
from trainers.batching.batch import Sample
from trainers.objective.loss_call import Loss

Dict = Mapping[str, Any]
TARGETS = ("response", "ref_logprobs", "advantages", "padding_mask")
GENERATOR = "generator_logprobs"


def to_samples(inputs: Sequence[Dict], targets: Sequence[Dict], *, ranks: int, vocabulary: int) -> list[Sample]:
    """Read a batch: the samples of the first dict's rows, then of the next dict's.

    Args:
        inputs: see this file's docstring.
        targets: likewise.
        ranks: data-parallel ranks of the trainer.
        vocabulary: tokens must be below it.
    """
    if not len(inputs) == len(targets) == ranks:
        raise UserError(
            f"inputs has {len(inputs)} dicts and targets has {len(targets)}; the trainer has {ranks} data-parallel "
            "ranks: give one dict for each"
        )
    if len({_given(target) for target in targets}) > 1:
        raise UserError(f"some dicts of targets have {GENERATOR!r} and others have not: give it in all of them or none")
    samples: list[Sample] = []
    for number, pair in enumerate(zip(inputs, targets, strict=True)):
        samples += _RankBatch(number, *pair, vocabulary).samples()
    return samples


def loss_for(loss: Loss, targets: Sequence[Dict]) -> Loss:
    """The loss to call on a batch. If the batch has no generator logprobs, the loss is given none."""
    if all(_given(target) for target in targets):
        return loss
    signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    parameter = signature.parameters.get(GENERATOR)
    if parameter is not None and parameter.default is parameter.empty:
        raise UserError(f"the loss asks for {GENERATOR!r}, which targets do not have: add it to every dict of targets")
    return _WithoutGenerator(loss, signature)


class _WithoutGenerator:
    """A loss that is not given the generator's logprobs, because nobody knows them."""

    def __init__(self, loss: Loss, signature: inspect.Signature) -> None:
        self._loss = loss
        self.__signature__ = signature
        self.unused_tensors = {GENERATOR, *getattr(loss, "unused_tensors", ())}
        self.normalizer_unit = getattr(loss, "normalizer_unit", "tokens")

    def __call__(self, **tensors: Tensor) -> Tensor:
        return self._loss(**tensors)


class _RankBatch:
    """The dicts of one data-parallel rank, checked."""

    def __init__(self, number: int, inputs: Dict, targets: Dict, vocabulary: int) -> None:
        self._number = number
        tokens = self.tokens = self._tensor(inputs, "inputs", "tokens", None)
        if tokens.is_floating_point() or (
            tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary
        ):
            raise UserError(
                f"inputs[{number}]['tokens'] must hold whole numbers from 0 to {vocabulary - 1}, the model's vocabulary"
            )
        rows, length = tokens.shape
        response = self._tensor(targets, "targets", "response", None)
        self.width = response.shape[1]
        if response.shape[0] != rows or not 0 < self.width < length:
            raise self._wrong_shape("response", response, f"({rows}, R) with 0 < R < {length}, as tokens has them")
        if not bool((tokens[:, length - self.width :] == response).all()):
            raise UserError(
                f"targets[{number}]['response'] is not the end of inputs[{number}]['tokens']: tokens must be "
                "torch.cat([request, response], 1)"
            )
        shape = (rows, self.width)
        self.mask = self._tensor(targets, "targets", "padding_mask", shape).bool()
        self.advantages = self._tensor(targets, "targets", "advantages", None)
        if tuple(self.advantages.shape) not in ((rows, 1), shape):
            raise self._wrong_shape("advantages", self.advantages, f"({rows}, 1) or {shape}")
        known = _key(targets, f"targets[{number}]", "ref_logprobs") is not None
        self.reference = self._tensor(targets, "targets", "ref_logprobs", shape) if known else None
        self.generator = self._tensor(targets, "targets", GENERATOR, shape) if _given(targets) else None

    def samples(self) -> list[Sample]:
        """One sample for each row."""
        request = self.tokens.shape[1] - self.width
        advantages, tokens = self.advantages.tolist(), self.tokens.tolist()
        reference = None if self.reference is None else self.reference.tolist()
        generator = None if self.generator is None else self.generator.tolist()
        samples = []
        for index, mask in enumerate(self.mask.tolist()):
            known = generator[index] if generator else [0.0] * self.width
            row = Row(
                token_ids=array_of(tokens[index], IDS),
                loss_mask=array_of([False] * request + mask, MASK),
                generator_logprobs=array_of([0.0] * request + known, FLOATS),
                versions=np.full(request + self.width, NOT_SAMPLED, dtype=IDS),
            )
            one = len(advantages[index]) == 1
            samples.append(
                Sample(
                    rows=(row,),
                    advantage=advantages[index][0] if one else np.compress(mask, advantages[index]),
                    reference_logprobs=np.compress(mask, reference[index]) if reference else None,
                )
            )
        return samples

    def _tensor(self, part: Dict, name: str, key: str, shape: tuple[int, int] | None) -> Tensor:
        value = _key(part, f"{name}[{self._number}]", key)
        if not isinstance(value, Tensor):
            raise UserError(f"{name}[{self._number}][{key!r}] is a {type(value).__name__}; it must be a tensor")
        if value.dim() != 2 or (shape is not None and tuple(value.shape) != shape):
            raise self._wrong_shape(key, value, str(shape) if shape else "(rows, tokens)", name)
        return value

    def _wrong_shape(self, key: str, value: Tensor, wanted: str, name: str = "targets") -> UserError:
        return UserError(f"{name}[{self._number}][{key!r}] has shape {tuple(value.shape)}; it must be {wanted}")


def _key(part: Dict, where: str, key: str) -> Any:
    if not isinstance(part, Mapping) or key not in part:
        held = ", ".join(map(str, part)) if isinstance(part, Mapping) else type(part).__name__
        needed = "tokens" if where.startswith("inputs") else ", ".join(TARGETS)
        raise UserError(f"{where} has no {key!r}: it holds {held or 'nothing'}, and needs {needed}")
    return part[key]


def _given(target: Any) -> bool:
    return isinstance(target, Mapping) and target.get(GENERATOR) is not None
