"""The position embedding that a config.json asks for (RoPE, arXiv 2104.09864), as transformers and vLLM read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The fields of rope_type "llama3", in Hugging Face's names."""
YARN = ("factor", "original_max_position_embeddings")
"""The fields that rope_type "yarn" (arXiv 2309.00071) must have."""
YARN_OPTIONS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
NEEDED = {"llama3": LLAMA3, "yarn": YARN, "linear": ("factor",)}
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
KEYS = {*_ALWAYS, *LLAMA3, *YARN_OPTIONS}
"""The fields of all types. The fields of another type change nothing."""


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings with rope_type and rope_theta; versions of transformers write them in different places."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))  # a null there is no default
    rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    if config.get("original_max_position_embeddings"):  # transformers prefers this value
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return rope


def attention_factor(rope: Mapping[str, Any]) -> float:
    """What queries and keys are multiplied by: for "yarn" 0.1 ln(factor) + 1, unless the fields say otherwise."""
    if rope["rope_type"] != "yarn":
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(rope["factor"]) + 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope["mscale"]) / scale(rope["mscale_all_dim"])
    return scale(1.0)


def uncomputed(config: Mapping[str, Any], types: tuple[str, ...], fields: frozenset[str] = frozenset()) -> list[str]:
    """What the rope settings ask for, in words, and the trainer does not compute.

    Args:
        types: the rope types that the family computes.
        fields: further ones that it computes, or that change nothing of text.
    """
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(name) or {}, dict):
            return [f"{name} {config[name]!r}, which is no object"]
    rope = rope_parameters(config)
    kind, required_names = rope["rope_type"], NEEDED.get(rope["rope_type"], ())
    if (old := rope.get("type", kind)) != kind and (old, kind) != ("mrope", "default"):
        return [f"rope_type {kind!r} beside type {old!r}, of which vLLM wants only the first"]
    if kind not in types:
        return [f"rope scaling {kind!r}"]
    if missing := [name for name in required_names if not _is_number(rope.get(name))]:
        return [f"rope scaling {kind!r} without a number for {', '.join(missing)}"]
    if not _is_number(rope["rope_theta"]):
        return [f"rope_theta {rope['rope_theta']!r}, which is no number above 0"]
    names = KEYS | fields
    problems = [f"{name} {value!r} of RoPE" for name, value in rope.items() if name not in names and value]
    if rope["partial_rotary_factor"] != 1.0 and "partial_rotary_factor" not in fields:
        problems.append(f"partial_rotary_factor {rope['partial_rotary_factor']}")
    scaling, beside = config.get("rope_scaling"), config.get("rope_parameters")
    if scaling and beside and beside.get("rope_theta", rope["rope_theta"]) != rope["rope_theta"]:
        problems.append(
            f"rope_scaling beside rope_parameters, so its rope_theta {beside['rope_theta']} is not used (write one "
            "rope_parameters with all fields)"
        )
    if kind == "yarn":
        problems += _uncomputed_yarn(config, rope)
    return problems


def _uncomputed_yarn(config: Mapping[str, Any], rope: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{name} {rope[name]!r} of yarn"
        for name in YARN_OPTIONS
        if rope.get(name) is not None and not _is_number(rope[name]) and name != "truncate"
    ]
    if rope["factor"] < 1.0:
        problems.append(f"factor {rope['factor']} of yarn, which is at least 1")
    # vLLM's table of positions ends there.
    length, end = config["max_position_embeddings"], int(rope["original_max_position_embeddings"] * rope["factor"])
    if length > end:
        problems.append(
            f"max_position_embeddings {length} with yarn, which reaches {end}, its original_max_position_embeddings "
            "times its factor"
        )
    return problems


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
