"""GSPO: group sequence policy optimisation (arXiv 2507.18071).

    python -m trainers.gspo --env code_exec
    python -m trainers.gspo --env math --training.sync_interval 4 --training.old_logprobs trainer

A reward belongs to an episode, and so does the importance ratio here: one number, the geometric mean of its tokens'
ratios, which is clipped as a whole. A mean of log-ratios moves little, so the clip range is far narrower than GRPO's.

In bfloat16 the engine and the trainer differ by more than this range on the same weights: a token's logprobs by 0.008
in the mean, up to 0.03, against 1e-6 in float32. A ratio of new / engine would clip 18% (A > 0) to 37% (A < 0) of the
episodes of 256 tokens before anything is learned. So in bfloat16 the ratio is new / old by default, against the
trainer's own logprobs (`training.old_logprobs`), and the correction takes the difference between old and engine.

The paper takes 4 optimizer steps on each batch of rollouts: `training.sync_interval 4`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Unpack

from annotated_types import Ge, Interval

from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.api import main
from trainers.config import RunConfig
from trainers.objective.loss_base import ClippedLoss, LossOptions
from trainers.objective.loss_terms import Aggregation, sequence_mean
from trainers.objective.settings import AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GSPOConfig(AlgorithmConfig):
    clips_within_rounding: ClassVar[bool] = True

    clip_low: Annotated[float, Interval(ge=0, le=1)] = 3e-4
    clip_high: Annotated[float, Ge(0)] = 4e-4
    aggregation: Literal["token", "sequence", "constant"] = "sequence"


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    gspo: GSPOConfig = field(default_factory=GSPOConfig)


class GSPOLoss(ClippedLoss):
    """The clipped surrogate of one ratio per episode: -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A).

    s = exp(mean over the episode's tokens of log r) is the geometric mean of the tokens' ratios r; arXiv 2507.18071,
    equations 5 and 7. The clip range is the paper's, hundreds of times narrower than GRPO's, since a mean of log-ratios
    varies much less.

    It is computed per token as s_t = sg(s) exp(logprob - sg(logprob)); sg(.) stops the gradient. This is the paper's
    GSPO-token form, as in verl. With one advantage per episode it has the value and gradient of the episode's ratio
    (TRL's importance_sampling_level="sequence"). Advantages per token work too. A token that a correction leaves out
    has no gradient here, as in verl; in TRL it keeps its share of the episode's ratio. The "sequence_" corrections are
    the same in all.
    """

    def __init__(
        self,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        beta: float = 0.0,
        aggregation: Aggregation = "sequence",
        *,
        dual_clip: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(clip_low, clip_high, beta, aggregation, dual_clip=dual_clip, **options)

    def ratio(self, log_ratio: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
        """s_t, (E, T): the episode's ratio at each token, with the gradient of the token's own logprob."""
        log_s = sequence_mean(log_ratio, mask)  # (E, 1)
        return (log_s.detach() + logprobs - logprobs.detach()).exp()


def loss(config: Config) -> GSPOLoss:
    section = config.gspo
    return GSPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config))


GSPO = Algorithm(name="gspo", config=Config, loss=loss, objective=make_objective)
"""J = E[ mean over episodes of min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) ]

with s = exp(mean over the episode's tokens of log(p_new / p_old)) and A = (R - mean(R)) / (std(R) + eps) over the group
(`trainers.objective.advantages.group_relative`). p_old is the trainer's at the last update of the engine's weights, or
the engine's.
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.gspo:GSPO"))
