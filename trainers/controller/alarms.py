"""The on-policy check: with the same weights, trainer and engine should give a token the same logprob.

If they do, the importance ratio is 1 before the first update. If they do not, every ratio and every gradient of the run
is wrong, although the rewards look normal. So each run measures the difference and reports it. Float32 against float32
differs by about 1e-6; bfloat16 by about 1e-2. An engine with quantized weights or a quantized cache is not expected to
agree: its report names these settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agents.generator.engine_args import approximations
from trainers.setup.run_plan import RunPlan

MEAN_BOUND = {"float32": 1e-4, "bfloat16": 0.1}
KL_BOUND = {"float32": 1e-4, "bfloat16": 0.05}  # of k3, which a few tokens far off move more than the mean


@dataclass(kw_only=True)
class MismatchAlarm:
    """Compares trainer and engine at every step, if all its tokens were sampled from the weights before it."""

    dtype: str
    """"float32" or "bfloat16": the coarser dtype of trainer and engine."""
    say: Callable[[str], None]
    bound: float = 0.0
    """Of the mean |logprob difference|; 0 is by dtype, and then the KL estimate k3 has a bound too."""
    approximations: Sequence[str] = ()
    """Settings of the engine that change its logprobs, as "name=value"; see `agents.generator.engine_args`."""
    _is_checked: bool = field(default=False, init=False)

    def __call__(self, metrics: Mapping[str, float], *, is_fresh: bool) -> float:
        """Check one step; returns 1.0 if trainer and engine differ by more than the bounds.

        The first step that can be checked is reported if it is within them. The metric says one that is not.

        Args:
            metrics: of the trainer: mean_abs_logprob_difference, kl, ratio_min, ratio_max; a step that computed no
                token has none of them.
            is_fresh: whether all tokens were sampled from the weights before the step; otherwise nothing is checked. Of
                several steps between two updates of the engine only the first is fresh.
        """
        if not is_fresh or "mean_abs_logprob_difference" not in metrics:
            return 0.0
        difference, kl = metrics["mean_abs_logprob_difference"], metrics["kl"]
        figures = f"mean |logprob difference| {difference:.2g}, k3 {kl:.2g}"
        # Written so that NaN is out of bounds.
        within = difference <= (self.bound or MEAN_BOUND[self.dtype]) and (self.bound > 0 or kl <= KL_BOUND[self.dtype])
        if within and not self._is_checked:
            ratio = f"ratio within [{metrics['ratio_min']:.6g}, {metrics['ratio_max']:.6g}]"
            why = f"with {', '.join(self.approximations)}" if self.approximations else f"as expected for {self.dtype}"
            self.say(f"on-policy check: {figures}, {ratio}: {why}")
        self._is_checked = True
        return float(not within)

    @property
    def bounds(self) -> str:
        """What a mismatch is above, for people."""
        if self.bound:
            return f"--training.mismatch_alarm {self.bound:g}"
        return f"{MEAN_BOUND[self.dtype]:g} and {KL_BOUND[self.dtype]:g}, the bounds for {self.dtype}"


def make_alarm(plan: RunPlan, say: Callable[[str], None]) -> MismatchAlarm:
    """The alarm of a run, with the bounds for the dtypes of its trainer and its engine."""
    return MismatchAlarm(
        dtype=plan.precision,
        say=say,
        bound=plan.config.training.mismatch_alarm,
        approximations=approximations(plan.engine.engine_args),
    )
