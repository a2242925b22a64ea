"""RewardActor: a reward function in processes of its own, for rewards that are slow or need much memory."""

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
        reward: the function, or its "module:function". It is called with those of `prompt`, `response` and `target`
            that it names, and returns a finite number.

    Raises:
        UserError: from its start, when there is no such function, or it names something else.
    """

    idempotent = frozenset({"evaluate_response"})

    def __init__(self, *, reward: str | Callable[..., Any], **base: Any) -> None:
        super().__init__(**base)
        self._target = reward

    async def on_start(self) -> None:
        self._reward = load(self._target) if isinstance(self._target, str) else self._target
        self._name = self._target if isinstance(self._target, str) else getattr(self._reward, "__name__", "the reward")
        named = inspect.signature(self._reward).parameters
        if any(each.kind is each.VAR_KEYWORD for each in named.values()):
            named = dict.fromkeys(("prompt", "response", "target"))  # type: ignore[assignment]
        unknown = [name for name in named if name not in ("prompt", "response", "target")]
        if unknown:
            raise UserError(f"{self._name} takes {', '.join(unknown)}; a reward takes prompt, response and target")
        self._named = tuple(named)

    @concurrent_endpoint
    async def evaluate_response(self, prompt: str, response: str, target: Any = None) -> float:
        """Return the reward of a response.

        Raises:
            EnvError: when the function raises, or what it returns is no finite number.
        """
        given = {"prompt": prompt, "response": response, "target": target}
        with guard(self._name):
            value = await invoke(self._reward, **{name: given[name] for name in self._named})
        return reward_value(value, f"{self._name} returned")
