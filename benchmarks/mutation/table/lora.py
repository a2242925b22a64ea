"""Adapters: what is trained, merged, written down, and taken for the reference."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

TRAINED = ("test_lora.py",)

MUTANTS = (
    Mutant(
        name="all adapters begin alike",
        function="Adapters.initialise",
        old='_generator(f"{seed} {name}")',
        new='_generator(f"{seed}")',
        tests=TRAINED,
    ),
    Mutant(
        name="adapters begin alike whatever the seed",
        function="Adapters.initialise",
        old='_generator(f"{seed} {name}")',
        new="_generator(name)",
        tests=TRAINED,
    ),
    Mutant(
        name="the weights of the engine lack the adapters",
        function="HFWeights._whole",
        old="alpha=part._lora_scaling",
        new="alpha=0.0",
        tests=TRAINED,
    ),
    Mutant(
        name="merged weights are rounded before the sum",
        function="HFWeights._whole",
        old="base, b, a, alpha",
        new="base.to(dtype).float(), b, a, alpha",
        tests=TRAINED,
    ),
    Mutant(
        name="the frozen weights are in every checkpoint",
        function="_OnlyAdapters._get_state_dict",
        old="if is_adapter(name)",
        new="",
        tests=TRAINED,
    ),
    Mutant(
        name="the reference has the adapters in training",
        function="Adapters.reference",
        old="self._replace(self._reference)",
        new="pass",
        tests=TRAINED,
    ),
    Mutant(
        name="the adapters stay off after the reference",
        function="Adapters._off",
        old="self._scale(self.lora.scaling)",
        new="pass",
        tests=TRAINED,
    ),
    Mutant(
        name="the rows of an exported adapter are in TorchTitan's order",
        function="_gathered",
        old="b[layer.rows.to(b.device)]",
        new="b",
        tests=TRAINED,
    ),
    Mutant(
        name="an adapter to start from is read in Hugging Face's order",
        function="_read",
        old="b[torch.argsort(layer.rows)]",
        new="b",
        tests=TRAINED,
    ),
    Mutant(
        name="keys get an adapter where values alone are named",
        function="build_with_adapters",
        old='"k_proj" not in lora.targets',
        new="False",
        tests=TRAINED,
    ),
    Mutant(
        name="a checkpoint of other adapters is loaded",
        function="TrainingState.load",
        old='manifest["lora"] != _lora(self.model)',
        new="False",
        tests=TRAINED,
    ),
)
