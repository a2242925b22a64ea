"""Every setting that transformers or vLLM reads in a family's config.json is computed, harmless or refused."""

from __future__ import annotations

import ast
import dataclasses
import functools
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoConfig, PreTrainedConfig

from trainers.families.family import Family
from trainers.families.settings import COMPUTED, HARMLESS, ONLY, REFUSED
from trainers.families.table import families

CONFIGS = ("config", "hf_config", "hf_text_config")
"""Names of variables that hold a model's config in both packages."""
SHARED = (
    "transformers/masking_utils.py",
    "transformers/modeling_rope_utils.py",
    "vllm/config/model.py",
    "vllm/transformers_utils/config.py",
    "vllm/transformers_utils/model_arch_config_convertor.py:ModelArchConfigConvertorBase",
)
"""What reads the config of any family: a file, or a class in it."""
NOT_OF_MODELS = ("interfaces", "utils", "adapters")
"""Files beside vLLM's models that are no models."""


def test_every_setting_is_classified() -> None:
    unknown = {
        family.model_type: sorted(missing)
        for family in families().values()
        if (missing := _read_of(family) - family.settings)
    }
    assert unknown == {}


def test_what_is_classified_is_read() -> None:
    """A name that nobody reads any more, or that is misspelt, goes."""
    others = {"model_type", "torch_dtype", "rope_scaling", "full_attention_interval"}  # read before there is a config
    read = set().union(*map(_read_of, families().values())) | others
    assert sorted((COMPUTED | HARMLESS | REFUSED | ONLY.keys()) - read) == []
    own = {name for family in families().values() for name in family.settings}
    assert sorted(own - read) == []


def test_the_walk_sees_what_engines_read() -> None:
    assert {"logit_scale", "sliding_window", "is_causal", "bias"} <= _read_of(families()["llama"])
    assert {"max_window_layers", "layer_types", "rope_parameters"} <= _read_of(families()["qwen2"])
    assert {"num_experts", "mlp_only_layers", "norm_topk_prob"} <= _read_of(families()["qwen3_moe"])


def _read_of(family: Family) -> frozenset[str]:
    """The settings of a family that its config class has, or that the code of both packages reads."""
    kind = type(AutoConfig.for_model(family.model_type))
    fields = {field.name for field in dataclasses.fields(kind)} | {*kind.attribute_map, *kind.attribute_map.values()}
    name = kind.__module__.rpartition("configuration_")[2]
    files = [f"transformers/models/{name}/modeling_{name}.py", *_vllm_files(family.architecture)]
    old = _names_of_arguments(f"transformers/models/{name}/configuration_{name}.py")
    return frozenset(fields.union(old, *map(_names, (*SHARED, *files))))


def _vllm_files(architecture: str) -> list[str]:
    """The file of a model, and the models' files that it imports from."""
    folder = "vllm/model_executor/models"
    name = _vllm_module(architecture)
    if name == "transformers":  # a package, which runs transformers' own module
        return [f"{folder}/{name}/{part}.py" for part in ("base", "causal")]
    beside = {
        node.module
        for node in ast.walk(_tree(f"{folder}/{name}.py"))
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
    }
    return [f"{folder}/{module}.py" for module in {name, *beside} - {*NOT_OF_MODELS}]


def _vllm_module(architecture: str) -> str:
    """The module of vLLM's model, from its registry."""
    for node in ast.walk(_tree("vllm/model_executor/models/registry.py")):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == architecture and isinstance(value, ast.Tuple):
                    module, _ = map(ast.literal_eval, value.elts)
                    return str(module)
    raise AssertionError(f"vLLM has no {architecture}")


def _names_of_arguments(place: str) -> frozenset[str]:
    """The settings that a config's class takes under a name of old folders: `kwargs.get` and `kwargs.pop`."""
    calls = (node for node in ast.walk(_tree(place)) if isinstance(node, ast.Call))
    return frozenset(
        call.args[0].value
        for call in calls
        if ast.unparse(call.func) in ("kwargs.get", "kwargs.pop") and isinstance(call.args[0], ast.Constant)
    )


@functools.cache
def _names(place: str) -> frozenset[str]:
    """The settings that a file, or a class in it, reads from a config; methods of configs are none."""
    file, _, name = place.partition(":")
    tree: ast.AST = _tree(file)
    if name:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            config, setting, *_ = node.args
            if _is_config(config) and isinstance(setting, ast.Constant):
                names.add(setting.value)
        elif isinstance(node, ast.Assign) and "names" in map(ast.unparse, node.targets):  # what `getattr_iter` tries
            names |= {part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    methods = {*dir(PreTrainedConfig), *dir(dict)}
    return frozenset(name for name in names - methods if isinstance(name, str) and not name.startswith("_"))


def _is_config(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in CONFIGS


@functools.cache
def _tree(file: str) -> ast.Module:
    package, _, path = file.partition("/")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(spec.origin).parent / path).read_text(encoding="utf-8"))
