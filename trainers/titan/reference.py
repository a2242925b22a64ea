"""A frozen model: logprobs of what another policy sampled, without gradients, optimizer or schedule."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainers.batching.batch import Sample, by_sample, pack
from trainers.titan.head import check_temperature
from trainers.titan.model import TitanModel
from trainers.titan.parallel import init_process_group, parallel_dims, resolve


class TitanReference:
    """One model of a Hugging Face folder, in one process.

    Args:
        model_path: the folder; `load` replaces its weights.
        dtype: as `TitanSettings.dtype`. The weights themselves are float32 in memory.
        threads: CPU threads of torch; 0 leaves them as they are.
        max_tokens: model tokens of one forward pass, padding included.

    Raises:
        UserError: the folder cannot be used, see `trainers.titan.model`.
    """

    def __init__(
        self, model_path: str | os.PathLike[str], *, dtype: str = "", threads: int = 0, max_tokens: int = 16384
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self._max_tokens = max_tokens
        self._owns_group = init_process_group()
        try:
            dtype, attention = resolve(dtype, "")
            self._multiple = 128 if attention == "flex" else 1  # its compiled kernels should see few lengths
            self.model = TitanModel(Path(model_path), parallel_dims(1, 1), dtype=dtype, attention=attention)
        except BaseException:
            self.close()
            raise
        self.model.module.requires_grad_(False).eval()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights; their names are Hugging Face's."""
        self.model.load_hf(weights)

    def load_file(self, path: str | os.PathLike[str]) -> None:
        """Replace all weights by those of a file that `save_file` wrote."""
        self.load(load_file(path))

    def save_file(self, path: str | os.PathLike[str]) -> None:
        """Write the weights as safetensors, exact; the file appears whole or not at all."""
        unfinished = f"{os.fspath(path)}.unfinished"
        save_file({name: value.cpu() for name, value in self.model.hf_state_dict().items()}, unfinished)
        os.replace(unfinished, path)

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[list[float]]:
        """This model's logprobs of the sampled targets: one list per sample, in row order."""
        check_temperature(temperature)
        found = torch.zeros(sum(sample.num_targets for sample in samples), device=self.model.device)
        for batch in pack(samples, max_tokens=self._max_tokens, pack_length=0, pad_id=0, multiple=self._multiple):
            batch = batch.to(self.model.device)
            inputs = batch.tokens, batch.positions, batch.selected, batch.targets
            values, _ = self.model.logprobs(*inputs, temperature)
            found[batch.numbers] = values
        return by_sample(samples, found)

    def close(self) -> None:
        """Destroy the process group, if it was made here. May be called again."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False
