"""What is trained in the place of all weights, and how experts are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from forge_env.utils.settings import MAY_CHANGE


@dataclass(kw_only=True)
class LoraConfig:
    """Low-rank adapters, which are trained in the place of all weights; docs/lora.md."""

    rank: Annotated[int, Interval(ge=0, le=1024)] = 0
    """Rows of the adapters' small matrices; 0 trains all weights, without adapters."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """What an adapter computes is multiplied by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """The matrices that get an adapter: all-linear, or any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and
    down_proj, with commas between them."""
    publish: Annotated[Literal["auto", "merged", "adapter"], MAY_CHANGE] = "auto"
    """What the engine gets: "merged" weights, summed in float32; or the "adapter" alone, which it computes beside the
    weights that it started with. "auto" is merged for an engine in float32 and for a model with experts, and else
    adapter for one in bfloat16, whose rounding would swallow small updates of merged weights."""
    adapter: str = ""
    """An adapter in PEFT's format to start from: a folder with adapter_config.json; its rank, alpha and targets must be
    those set here. The KL penalty is then against it."""


@dataclass(kw_only=True)
class MoEConfig:
    """Models with experts; docs/experts.md."""

    replay: Literal["auto", "off"] = "auto"
    """Whether the trainer computes tokens with the experts that the engine chose for them (routing replay); "auto" does
    in a policy-gradient run of a model with experts."""
    compare_interval: Annotated[int, Ge(0)] = 20
    """With replay: the first optimizer step, and from there on each after so many, also measures how far trainer and
    engine are apart without it, which takes one forward pass more; 0 never does."""
    record_routes: bool = False
    """Write the experts that the engine chose into the files of episodes, too: most of their size then."""
