"""Values and gradients against TRL's public loss, in float64, where the package trl is installed (1.16 was tried).

TRL's method wants a trainer around it; what it looks at of one is given by a plain namespace.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainers.objective.loss_references import make_batch
from trainers.losses import CISPOLoss, DAPOLoss, GRPOLoss, GSPOLoss, SAPOLoss

LENGTH = 7
GRPO = {"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.28}
CASES: dict[str, tuple[torch.nn.Module, dict[str, Any]]] = {
    "grpo": (GRPOLoss(), GRPO),
    "grpo-delta": (GRPOLoss(0.1, 0.1, dual_clip=1.3), GRPO | {"epsilon_low": 0.1, "epsilon_high": 0.1, "delta": 1.3}),
    "grpo-kl": (GRPOLoss(beta=0.2), GRPO | {"beta": 0.2}),
    "bnpo": (GRPOLoss(aggregation="token"), GRPO | {"loss_type": "bnpo"}),
    "dr_grpo": (GRPOLoss(aggregation="constant", constant=LENGTH), GRPO | {"loss_type": "dr_grpo"}),
    "dapo": (DAPOLoss(beta=0.1), GRPO | {"loss_type": "dapo", "beta": 0.1}),
    "cispo": (CISPOLoss(clip_high=0.3), {"loss_type": "cispo", "epsilon_high": 1.3}),
    "sapo": (SAPOLoss(), {"loss_type": "sapo"}),
    "gspo": (GSPOLoss(), GRPO | {"epsilon_low": 3e-4, "epsilon_high": 4e-4, "importance_sampling_level": "sequence"}),
    "gspo-wide": (GSPOLoss(0.2, 0.28, beta=0.1), GRPO | {"importance_sampling_level": "sequence", "beta": 0.1}),
}
MODES = ("none", "truncate", "mask", "sequence_truncate", "sequence_mask")


@pytest.fixture(scope="module")
def compute_loss() -> Any:
    """TRL's own method, as a plain function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("trl").GRPOTrainer._compute_loss


def trl_trainer(logprobs: torch.Tensor, settings: dict[str, Any], *, corrected: bool) -> SimpleNamespace:
    defaults = {"importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0}
    args = SimpleNamespace(
        delta=settings.get("delta"),
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    entropies = torch.zeros_like(logprobs)
    return SimpleNamespace(
        **defaults | {key: value for key, value in settings.items() if key != "delta"},
        args=args,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, entropies, None),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=corrected,
        vllm_importance_sampling_correction=corrected,
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
    )


def trl_correction(batch: dict[str, torch.Tensor], mode: str, low: float, high: float) -> torch.Tensor:
    """What TRL's trainer computes before its loss: `vllm_importance_sampling_mode`."""
    difference = (batch["old_logprobs"] - batch["generator_logprobs"]) * batch["loss_mask"]
    ratio = (difference.sum(-1, keepdim=True) if mode.startswith("sequence") else difference).exp()
    if mode.endswith("truncate"):
        return ratio.clamp(min=low, max=high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_trls(compute_loss: Any, name: str, mode: str) -> None:
    loss, settings = CASES[name]
    batch = {key: value[1:] for key, value in make_batch(seed=3, episodes=6, tokens=LENGTH).items()}
    generator = torch.Generator().manual_seed(4)
    noise = torch.randn(batch["logprobs"].shape, dtype=torch.float64, generator=generator)
    batch["old_logprobs"] = batch["generator_logprobs"] + 0.2 * noise
    loss.correction, loss.correction_low, loss.correction_high = mode, 0.8, 1.25
    corrected = {} if mode == "none" else {"importance_sampling_ratio": trl_correction(batch, mode, 0.8, 1.25)}

    ours = batch["logprobs"].clone().requires_grad_()
    value = loss(**batch | {"logprobs": ours})
    value.backward()

    theirs = batch["logprobs"].clone().requires_grad_()
    ids = torch.zeros(theirs.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": batch["loss_mask"].long(),
        "advantages": batch["advantages"][:, 0],
        "old_per_token_logps": batch["old_logprobs"],
        "ref_per_token_logps": batch["reference_logprobs"],
        "num_items_in_batch": batch["loss_mask"].sum(),
    }
    expected = compute_loss(trl_trainer(theirs, settings, corrected=bool(corrected)), None, inputs | corrected)
    expected.backward()

    assert batch["loss_mask"].any(-1).all(), "TRL counts rows without a valid token, and we do not"
    exact = 1e-6 if isinstance(loss, SAPOLoss) else 1e-12  # TRL's temperature 1.05 is a float32
    assert value.item() == pytest.approx(expected.item(), abs=exact)
    if isinstance(loss, GSPOLoss) and mode in ("mask", "truncate"):
        return  # the gradient differs by design, see GSPOLoss
    torch.testing.assert_close(ours.grad, theirs.grad, atol=exact, rtol=0)
