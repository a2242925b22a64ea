"""What a step costs on a CPU, as an order of magnitude: a run that belongs on a GPU shows at once."""

from __future__ import annotations

from trainers.families.shape import ModelShape
from trainers.setup.run_plan import RunPlan

RATE = 1e11
"""FLOPs a second of two cores of a server, in float32. Measured with SmolLM2-135M-Instruct, 64 episodes of at most 64
tokens: 400 sampled tokens a second, which are 1.1e11, and training at 1e11 to 2.5e11. The demo's tiny model takes 1.3 s
a step, where the estimate says 2."""
SAMPLE, TRAIN, TRAIN_ADAPTERS = 2, 6, 4
"""FLOPs of a token and a parameter that it is multiplied with (arXiv 2001.08361, table 1): a forward pass, and a step
of the trainer. Frozen weights need no gradients of their own."""


def describe_cost(plan: RunPlan) -> str:
    """The cost of a step if all its episodes have the maximal length; "" for a run on GPUs, or of unknown sizes."""
    services = plan.config.services
    is_on_cpu = not services.trainer.with_gpus and not services.generator.with_gpus
    if not is_on_cpu or plan.objective is None or plan.shape is None:
        return ""
    tokens = plan.config.training.groups_per_step * plan.objective.group_size * plan.config.env.max_tokens
    flops = tokens * flops_of_token(plan.shape, has_adapters=plan.lora is not None)
    bound = "with one row an episode" if plan.compacts else "at most"
    steps = f", and {duration(flops / RATE * plan.steps)} for all steps" if plan.steps else ""
    return (
        f"{bound} {flops:.0e} FLOPs, with {tokens:,} tokens that are read or sampled, and trained on: roughly "
        f"{duration(flops / RATE)} on two cores{steps}; less by the part that episodes are shorter"
    )


def flops_of_token(shape: ModelShape, *, has_adapters: bool = False) -> int:
    """FLOPs to sample a token and to train on it, without attention to the tokens before it.

    It is multiplied with the parameters of its layers and experts, and with the output layer.
    """
    parameters = shape.num_hidden_layers * shape.active_layer_parameters + shape.vocab_size * shape.hidden_size
    return (SAMPLE + (TRAIN_ADAPTERS if has_adapters else TRAIN)) * parameters


def duration(seconds: float) -> str:
    """Seconds to one digit, in words.

    >>> [duration(seconds) for seconds in (0.3, 2.4, 340.0, 9_000.0, 400_000.0)]
    ['1 s', '2 s', '6 minutes', '2 hours', '5 days']
    """
    if seconds < 60:
        return f"{max(1, float(f'{seconds:.0e}')):.0f} s"
    units = {"minutes": 60.0, "hours": 3600.0, "days": 86400.0}
    unit = "minutes" if seconds < 5400 else "hours" if seconds < 129_600 else "days"
    return f"{float(f'{seconds / units[unit]:.0e}'):,.0f} {unit}"
