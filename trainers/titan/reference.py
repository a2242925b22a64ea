"""A frozen model: it gives logprobs of what another policy sampled, without gradients, optimizer or schedule."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainers.batching.batch import Sample
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer
from trainers.titan.weight_files import WeightFiles


class TitanReference:
    """One model of a Hugging Face folder, on one process or sharded over several.

    It packs, shards and computes as the trainer does, for it is a trainer that is frozen. Its weights are in the dtype
    in which it computes. If they are sharded, they are freed after each layer.

    Args:
        model_path: the folder; `load_file` replaces its weights.
        settings: of a trainer; settings of the optimizer are ignored, and weights are freed after each layer.
    """

    def __init__(self, model_path: str | os.PathLike[str], settings: TitanSettings | None = None) -> None:
        settings = replace(settings or TitanSettings(), reshard_after_forward="always")
        self._frozen = TitanTrainer(model_path, settings, is_frozen=True)
        self.model = self._frozen.model

    @property
    def world_size(self) -> int:
        """Processes that share the weights and the samples."""
        return self._frozen.world_size

    def load_file(self, path: str | os.PathLike[str]) -> None:
        """Replace all weights with those of a file that `TitanTrainer.write_weights` wrote. Every rank calls it."""
        self.model.weights.load(WeightFiles(Path(path), [Path(path)]))

    def logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[np.ndarray]:
        """This model's logprobs of the sampled targets: one float32 array per sample, in row order, the same on every
        rank."""
        return self._frozen.logprobs(samples, temperature)

    def close(self) -> None:
        """Destroy the process group, if it was made here. May be called again."""
        self._frozen.close()
