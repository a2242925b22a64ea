"""What is trained in the place of all weights, and how experts are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from forge_env.utils.settings import MAY_CHANGE


@dataclass(frozen=True, kw_only=True)
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
    """"merged": the engine gets weights that are summed with the adapter in float32. "adapter": it gets the adapter
    alone, and computes it beside the weights that it started with. "auto" is merged for an engine in float32 and for a
    model with experts. Otherwise it is adapter: rounding to bfloat16 would lose small updates of merged weights."""
    adapter: str = ""
    """An adapter to start from, in PEFT's format: a folder with adapter_config.json. Its rank, alpha and targets must
    be the ones set here. The KL penalty is then against it."""

    @property
    def is_on(self) -> bool:
        """Whether adapters are trained, and not all weights."""
        return self.rank > 0


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Models with experts; docs/experts.md."""

    replay: Literal["auto", "off"] = "auto"
    """Routing replay: the trainer computes each token with the experts that the engine chose for it. "auto" does so in
    a policy-gradient run of a model with experts."""
    compare_interval: Annotated[int, Ge(0)] = 20
    """Optimizer steps between two steps that also measure, with one more forward pass, how far trainer and engine are
    apart without replay; the first step does. 0 never measures it."""
    record_routes: bool = False
    """Also write the experts that the engine chose into the files of episodes, which then consist mostly of them."""
