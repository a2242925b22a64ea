"""Every loss once more: token by token, from the papers, with `math` alone, and not from the fast ones.

`frozen` are the logprobs wherever a formula stops the gradient, so that finite differences with respect to `logprobs`
are the gradient that training takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def make_batch(episodes: int = 5, tokens: int = 7, seed: int = 0, spread: float = 0.4) -> dict[str, torch.Tensor]:
    """Random inputs in float64; episode 0 has no valid token, and episode 1 no other."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(episodes, tokens, generator=generator) < 0.6
    mask[0] = False
    mask[1] = True
    logprobs = -normal(episodes, tokens).abs()
    return {
        "logprobs": logprobs,
        "generator_logprobs": logprobs + spread * normal(episodes, tokens),
        "reference_logprobs": logprobs + spread * normal(episodes, tokens),
        "advantages": normal(episodes, 1),
        "loss_mask": mask,
    }


class Reference:
    """One batch as nested lists, and one objective over it."""

    def __init__(self, kind: str, batch: dict[str, torch.Tensor], **settings: Any) -> None:
        self.kind = kind
        self.frozen = batch["logprobs"].detach().numpy().copy()
        self.engine = batch["generator_logprobs"].numpy()
        self.old = batch["old_logprobs"].numpy() if "old_logprobs" in batch else None
        self.ref = batch["reference_logprobs"].numpy()
        self.entropy = batch["entropy"].numpy() if "entropy" in batch else None
        advantages = batch["advantages"].numpy().reshape(len(self.frozen), -1)
        self.advantages = np.broadcast_to(advantages, self.frozen.shape)
        self.valid = [
            [t for t in range(self.frozen.shape[1]) if batch["loss_mask"][i, t] and math.isfinite(self.engine[i, t])]
            for i in range(len(self.frozen))
        ]
        self.settings = settings

    def value(self, logprobs: np.ndarray) -> float:
        """The loss at these logprobs."""
        aggregation = self.settings["aggregation"]
        per_episode = [[self.token(logprobs, i, t) for t in valid] for i, valid in enumerate(self.valid) if valid]
        if aggregation == "token":
            every = [term for terms in per_episode for term in terms]
            return math.fsum(every) / len(every)
        if aggregation == "sequence":
            return math.fsum(math.fsum(terms) / len(terms) for terms in per_episode) / len(per_episode)
        return math.fsum(math.fsum(terms) for terms in per_episode) / self.settings["constant"] / len(per_episode)

    def gradient(self, step: float = 1e-6) -> np.ndarray:
        """Central differences."""
        result = np.zeros_like(self.frozen)
        for i, t in np.ndindex(*result.shape):
            up, down = self.frozen.copy(), self.frozen.copy()
            up[i, t] += step
            down[i, t] -= step
            result[i, t] = (self.value(up) - self.value(down)) / (2 * step)
        return result

    def token(self, logprobs: np.ndarray, i: int, t: int) -> float:
        term = self.correction(i, t) * self.policy(logprobs, i, t)
        if beta := self.settings.get("beta", 0.0):
            term += beta * self.kl(float(logprobs[i, t] - self.ref[i, t]))
        if coefficient := self.settings.get("entropy_coef", 0.0):
            assert self.entropy is not None
            term -= coefficient * float(self.entropy[i, t])
        return term

    def policy(self, logprobs: np.ndarray, i: int, t: int) -> float:
        behaviour = self.engine if self.old is None else self.old
        advantage = float(self.advantages[i, t])
        ratio = math.exp(logprobs[i, t] - behaviour[i, t])
        frozen_ratio = math.exp(self.frozen[i, t] - behaviour[i, t])
        s = self.settings
        if self.kind == "simple":
            return -math.exp(logprobs[i, t] - self.frozen[i, t]) * advantage
        if self.kind == "reinforce":
            weight = 1.0
            if s["clip_ratio"] is not None:
                weight = min(max(frozen_ratio, 1 - s["clip_ratio"]), 1 + s["clip_ratio"])
            return -weight * advantage * float(logprobs[i, t])
        if self.kind == "cispo":
            weight = min(max(frozen_ratio, 1 - s["clip_low"]), 1 + s["clip_high"])
            return -weight * advantage * float(logprobs[i, t])
        if self.kind == "sapo":
            tau = s["tau_pos"] if advantage > 0 else s["tau_neg"]
            return -advantage * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
        if self.kind == "gspo":
            ratio = self.sequence_ratio(logprobs, behaviour, i, t)
        if advantage >= 0:
            return -advantage * min(ratio, 1 + s["clip_high"])
        loss = -advantage * max(ratio, 1 - s["clip_low"])
        return loss if s.get("dual_clip") is None else min(loss, -advantage * s["dual_clip"])

    def sequence_ratio(self, logprobs: np.ndarray, behaviour: np.ndarray, i: int, t: int) -> float:
        """The ratio of the sequence itself, the same at every token; GSPO-token's where tokens have own weights."""
        token_weights = self.settings.get("correction", "none") in ("mask", "truncate")
        places = self.frozen if token_weights else logprobs
        mean = sum(places[i, u] - behaviour[i, u] for u in self.valid[i]) / len(self.valid[i])
        return math.exp(mean + (logprobs[i, t] - self.frozen[i, t] if token_weights else 0.0))

    def kl(self, d: float) -> float:
        estimators: dict[str, Callable[[float], float]] = {
            "k1": lambda d: d,
            "k2": lambda d: d**2 / 2,
            "k3": lambda d: math.exp(-d) - (-d) - 1,
        }
        return estimators[self.settings.get("kl", "k3")](d)

    def correction(self, i: int, t: int) -> float:
        """Three policies: the bounded old / engine. Two: the same of trainer / engine, over what the ratio has."""
        mode = self.settings.get("correction", "none")
        if mode == "none" or self.kind == "simple":
            return 1.0
        numerator = self.frozen if self.old is None else self.old
        places = self.valid[i] if mode.startswith("sequence") else [t]
        rho = math.exp(sum(numerator[i, u] - self.engine[i, u] for u in places))
        low, high = self.settings["correction_low"], self.settings["correction_high"]
        bounded = min(max(rho, low), high) if mode.endswith("truncate") else rho * (low <= rho <= high)
        return bounded / (rho if self.old is None else 1.0)
