"""RewardActor: a reward function in separate processes, for rewards that are slow or need much memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.reward_value import reward_value
from forge_env.core.user_code import guard
from forge_env.registry.registry import load
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint
from forge_env.utils.threads import invoke


class RewardActor(ForgeActor):
    """Scores answers with a function, plain or async; many calls run at once.

    Args:
        reward: the function, or its "module:function". It may take `prompt`, `response` and `target`, and returns a
            finite number.

    Raises:
        UserError: at the start, for a function that does not exist or has another parameter.
    """

    idempotent = frozenset({"evaluate_response"})

    def __init__(self, *, reward: str | Callable[..., Any], **base: Any) -> None:
        super().__init__(**base)
        self._target = reward

    async def on_start(self) -> None:
        self._reward = load(self._target) if isinstance(self._target, str) else self._target
        self._name = self._target if isinstance(self._target, str) else getattr(self._reward, "__name__", "the reward")
        parameters = inspect.signature(self._reward).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            parameters = dict.fromkeys(("prompt", "response", "target"))  # type: ignore[assignment]
        unknown = [name for name in parameters if name not in ("prompt", "response", "target")]
        if unknown:
            raise UserError(f"{self._name} takes {', '.join(unknown)}; a reward takes prompt, response and target")
        self._parameters = tuple(parameters)

    @concurrent_endpoint
    async def evaluate_response(self, prompt: str, response: str, target: Any = None) -> float:
        """Return the reward of a response.

        Raises:
            EnvError: when the function raises, or what it returns is not a finite number.
        """
        arguments = {"prompt": prompt, "response": response, "target": target}
        with guard(self._name):
            value = await invoke(self._reward, **{name: arguments[name] for name in self._parameters})
        return reward_value(value, f"{self._name} returned")
