"""One call of a user's loss, advantages and reward on made-up values, before anything starts."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forge_env.core.episode import Episode, Row
from forge_env.core.errors import EnvError, InfraError, UserError
from forge_env.core.turn import Turn
from forge_env.core.types import Message, Task, ToolCall
from forge_env.core.user_code import error_text
from forge_env.rollout.group_reward import values_of
from forge_env.tool_env.rubric import RewardPart
from trainers.batching.batch import MicroBatch, Sample, pack
from trainers.objective.loss_call import Loss, LossCall
from trainers.objective.plugins import NoReward

if TYPE_CHECKING:
    from torch import Generator, Tensor

ADVANTAGES = (1.0, -1.0, 0.5, -0.5)
ANSWER = "<think>2 + 2 is 4</think><answer>The answer is \\boxed{4}</answer> #### 4"
"""What reward functions look for, in the usual forms."""
SECONDS = 5.0
"""Time for a reward function, which may ask a judge; a slower one is not waited for."""
DISTANCES = (0.02, 0.5)
"""How far the logprobs of the trainer are from those of the engine; a loss may clip all of the one or the other."""


def try_loss(loss: Loss, name: str) -> None:
    import torch  # slow import, which only a loss of the user's needs

    call, has_gradient = LossCall(loss), False
    for seed, distance in enumerate(DISTANCES):
        batch, leaves = _made_up(torch.Generator().manual_seed(seed), distance)
        normalizer = torch.tensor(float(units := call.units(*batch.units)))
        try:
            value = call(batch, *leaves, units=units, normalizer=normalizer)
            gradients = torch.autograd.grad(value, leaves, allow_unused=True)
        except UserError as error:
            raise UserError(f"{name}, on made-up values: {error}") from None
        except Exception as error:
            raise UserError(f"{name} failed on made-up values: {type(error).__name__}: {error}") from error
        present = [gradient for gradient in gradients if gradient is not None]
        if not value.isfinite() or not all(gradient.isfinite().all() for gradient in present):
            what = "the gradient" if value.isfinite() else "the loss"
            raise UserError(
                f"{name}: on made-up values {what} is not finite: look for a division by 0, or a logarithm or an "
                "exponential out of range"
            )
        has_gradient = has_gradient or any(gradient.any() for gradient in present)
    if not has_gradient:
        raise UserError(f"{name}: on made-up values its gradient is 0 everywhere, so that it would train nothing")


def try_advantages(advantages: Callable[[Sequence[float]], list[float]], size: int, name: str) -> None:
    """Call an advantage function on groups of `size` rewards: different ones and equal ones, and on two."""
    different = [float(place % 2) for place in range(size)]
    for rewards in (different, [1.0] * size, [0.0] * size, [0.0, 1.0]):
        values = advantages(rewards)
        if len(values) != len(rewards) or not all(map(math.isfinite, values)):
            raise UserError(f"{name} gives {values} for the rewards {rewards}: it must give one finite number for each")
    if size > 1 and not any(advantages(different)):
        raise UserError(f"{name} gives 0 for each of the rewards {different}, so that nothing would be trained")


def try_reward(reward: Callable[[Episode], float], task: Task) -> None:
    """Call a reward function on made-up episodes of a task, one with an answer and one with a tool call."""
    errors, episodes = list[UserError](), _episodes(task)

    def call() -> None:
        for made_up in episodes:
            try:
                reward(made_up)
            except NoReward:
                continue
            except UserError as error:
                errors.append(error)

    _within_seconds(call)
    if len(errors) == len(episodes):
        raise UserError(f"{errors[0]}; it gives none of {len(errors)} made-up episodes a number")


def try_group_reward(part: RewardPart, task: Task) -> None:
    """Let a function of the user's own compare the same episodes. A judge that does not answer may answer later."""
    errors = list[EnvError]()

    def call() -> None:
        try:
            asyncio.run(values_of([part], _episodes(task), None))
        except InfraError:
            pass
        except EnvError as error:
            errors.append(error)

    _within_seconds(call)
    if errors:
        raise UserError(f"--group-reward, on two made-up episodes: {error_text(errors[0])}")


def _within_seconds(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)


def _made_up(rng: Generator, distance: float) -> tuple[MicroBatch, tuple[Tensor, Tensor]]:
    """A micro-batch, and the logprobs and entropies of a trainer, as leaves."""
    import torch

    samples = []
    for place, advantage in enumerate(ADVANTAGES):
        length = 6 + place
        mask = np.arange(length) >= 2
        generator_logprobs = np.where(mask, -2.0 * torch.rand(length, generator=rng).numpy() - 0.1, 0.0)
        ids, versions = np.arange(length, dtype=np.int32), np.where(mask, 0, -1)
        row = Row(token_ids=ids, loss_mask=mask, generator_logprobs=generator_logprobs, versions=versions)
        near = generator_logprobs[mask] - 0.01
        samples.append(Sample(rows=(row,), advantage=advantage, reference_logprobs=near, old_logprobs=near))
    (batch,) = pack(samples, max_tokens=1024, pack_length=0, pad_id=0)
    noise = torch.rand(batch.generator_logprobs.shape, generator=rng) - 0.5
    logprobs = (batch.generator_logprobs + 2 * distance * noise * batch.loss_mask).requires_grad_()
    return batch, (logprobs, torch.rand(logprobs.shape, generator=rng).requires_grad_())


def _episodes(task: Task) -> tuple[Episode, ...]:
    answer = Turn(
        kind="sampled",
        observation=task.prompt,
        message={"role": "assistant", "content": ANSWER},
        prompt_ids=np.array([1, 2, 3]),
        token_ids=np.array([4, 5]),
        logprobs=np.array([-0.5, -0.1]),
        versions=((0, 2),),
        starts_row=True,
    )
    call = {"id": "call_0", "type": "function", "function": {"name": "tool", "arguments": "{}"}}
    turn = replace(
        answer,
        message={"role": "assistant", "content": "", "tool_calls": [call]},
        tool_calls=(ToolCall(id="call_0", name="tool", arguments={}),),
    )
    result: Message = {"role": "tool", "tool_call_id": "call_0", "name": "tool", "content": "4"}
    after = replace(answer, observation=(result,), starts_row=False)
    plain = Episode(task=task, turns=(answer,), reward=1.0, id="made-up", ended_by="environment")
    return plain, replace(plain, turns=(turn, after), reward=0.0)
