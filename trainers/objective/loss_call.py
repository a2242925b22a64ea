"""How the trainer calls a loss: it reads the loss's parameters, hands over the tensors they name, and normalises."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from forge_env.core.errors import UserError, nearest
from trainers.batching.batch import MicroBatch
from trainers.objective.loss_base import TORCHFORGE_NAMES

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[..., "Tensor"]

LOSS_TENSORS = (
    "logprobs",
    "generator_logprobs",
    "reference_logprobs",
    "old_logprobs",
    "advantages",
    "loss_mask",
    "entropy",
    "normalizer",
)
ACCEPTED = {name: name for name in LOSS_TENSORS} | TORCHFORGE_NAMES
"""Each parameter name that a loss may have, and the tensor that it is given."""


class LossCall:
    """A loss together with the tensors that its signature names.

    Args:
        loss: a function or module. Its parameters are any of `LOSS_TENSORS`, or torchforge's `padding_mask` and
            `ref_logprobs`. A loss that names `normalizer` returns a sum divided by it. Any other returns a local mean,
            which is weighted by the micro-batch's share of the valid tokens, or of the episodes if its
            `normalizer_unit` is "episodes". The tensors in its `unused_tensors` are not computed. If its `skips_idle`
            is true, samples without any advantage are not computed.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._per_episode = getattr(loss, "normalizer_unit", "tokens") == "episodes"
        self.skips_idle = bool(getattr(loss, "skips_idle", False))
        parameters = inspect.signature(getattr(loss, "forward", loss)).parameters.values()
        names = {p.name for p in parameters}
        variadic = {p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        self._required_names = {p.name for p in parameters if p.default is p.empty} - variadic
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            names |= ACCEPTED.keys() - {"entropy"}  # entropy is costly, so a loss asks for it by name
        unused_names = {ACCEPTED.get(name, name) for name in getattr(loss, "unused_tensors", ())}
        self._tensor_of = {
            name: ACCEPTED[name] for name in names & ACCEPTED.keys() if ACCEPTED[name] not in unused_names
        }
        self.names = set(self._tensor_of.values())
        """The tensors of `LOSS_TENSORS` that the loss is given."""
        for name in sorted(self._required_names - ACCEPTED.keys()):
            raise UserError(f"the loss asks for {name!r}, which no trainer has. {nearest(name, tuple(ACCEPTED))}")

    def units(self, tokens: int, episodes: int) -> int:
        """This loss's unit of normalisation: the number of valid tokens, or of episodes with valid tokens."""
        return episodes if self._per_episode else tokens

    def __call__(
        self, batch: MicroBatch, logprobs: Tensor, entropy: Tensor | None, *, units: int, normalizer: Tensor
    ) -> Tensor:
        """The micro-batch's part of the global loss: a scalar with gradient.

        Args:
            logprobs: (E, T) of the model being trained, with gradient.
            entropy: (E, T) with gradient; needed when "entropy" is in `names`.
            units: this micro-batch's valid tokens or episodes, as `units` counts them.
            normalizer: scalar, the same count over all micro-batches and ranks.
        """
        tensors = {
            "logprobs": logprobs,
            "generator_logprobs": batch.generator_logprobs,
            "reference_logprobs": batch.reference_logprobs,
            "old_logprobs": batch.old_logprobs,
            "advantages": batch.advantages,
            "loss_mask": batch.loss_mask,
            "entropy": entropy,
            "normalizer": normalizer,
        }
        for name in sorted(self._required_names):
            if tensors[ACCEPTED[name]] is None:
                raise UserError(f"the loss asks for {name!r}, which the samples do not have: give a reference model.")
        value = self.loss(**{name: tensors[tensor] for name, tensor in self._tensor_of.items()})
        if not isinstance(value, type(logprobs)) or value.numel() != 1 or not value.requires_grad:
            raise UserError("the loss must return one number as a tensor that depends on logprobs or entropy.")
        return value.squeeze() if "normalizer" in self.names else value.squeeze() * (units / normalizer)
