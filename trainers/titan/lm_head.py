"""The output layer of a TorchTitan model, changed to give logprobs instead of logits.

This happens in the layer's own forward. Only there does FSDP have the full weight, and only the output of that forward
tells FSDP when to reduce the weight's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from trainers.titan.head import head_logprobs


class Head:
    """Replaces the forward of `lm_head`, a linear layer without bias that is already parallelized.

    Call `ask_logits`, `ask_top` or `ask_logprobs` before each pass of the model; the pass then returns what was asked.

    Args:
        lm_head: the layer; it computes in the dtype of its weight, whatever the rest of the model computes in.
    """

    def __init__(self, lm_head: nn.Linear, kept_bytes: float = 0) -> None:
        self._lm_head = lm_head
        self._kept_bytes = kept_bytes
        self._linear: Callable[[Tensor], Tensor] = lm_head.forward
        self._answer: Callable[[Tensor], Any] = self._linear
        lm_head.forward = self.__call__  # type: ignore[method-assign, assignment]  # as TorchTitan's own parallelize does

    def __call__(self, hidden: Tensor) -> Any:
        return self._answer(hidden)

    def ask_logits(self, selected: Tensor) -> None:
        """Let the next pass return logits (N, V) of the places `selected` (N,) in the flattened (B, L)."""

        def answer(hidden: Tensor) -> Tensor:
            hidden = hidden.to(self._lm_head.weight.dtype)
            if isinstance(hidden, DTensor):  # tensor parallel: the vocabulary is sharded, so places are chosen last
                logits = self._linear(hidden)
                return (logits.full_tensor() if isinstance(logits, DTensor) else logits).flatten(0, 1)[selected]
            return self._linear(hidden.flatten(0, 1)[selected][None])[0]

        self._answer = answer

    def ask_top(self, selected: Tensor, count: int, temperature: float) -> None:
        """Let the next pass return the `count` largest logprobs (N, count) at the places `selected`, and their ids.

        For a model without tensor parallelism. A sixteenth of the logits is there at a time, in float32.
        """

        def answer(hidden: Tensor) -> tuple[Tensor, Tensor]:
            weight: Tensor = self._lm_head.weight
            rows = hidden.flatten(0, 1)[selected].to(weight.dtype)
            parts = rows.split(max(1, -(-len(rows) // 16)))
            tops = [((part @ weight.T).float() / temperature).log_softmax(-1).topk(count) for part in parts]
            return torch.cat([values for values, _ in tops]), torch.cat([ids for _, ids in tops])

        self._answer = answer

    def ask_logprobs(self, selected: Tensor, targets: Tensor, temperature: float, with_entropy: bool) -> None:
        """Let the next pass return the result of `head_logprobs` for the places `selected` in the flattened (B, L)."""

        def answer(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
            weight: Tensor = self._lm_head.weight
            group, start = None, 0
            if isinstance(hidden, DTensor) and isinstance(weight, DTensor):  # tensor parallel: by shards of V
                mesh = hidden.device_mesh
                rows = -(-len(weight) // mesh.size())  # DTensor gives every rank this number, and the last one the rest
                group, start = mesh.get_group(), rows * mesh.get_local_rank()
                # Every rank has the same hidden states, and the gradient of its own shard of the vocabulary.
                hidden, weight = hidden.to_local(grad_placements=[Partial()]), weight.to_local()
            sampled_rows = hidden.flatten(0, 1)[selected].to(weight.dtype)  # (N, D)
            return head_logprobs(
                sampled_rows,
                weight,
                targets,
                temperature,
                with_entropy=with_entropy,
                group=group,
                start=start,
                kept_bytes=self._kept_bytes,
            )

        self._answer = answer
