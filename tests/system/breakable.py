"""PolicyActors that a test breaks; imported by Monarch's child processes."""

from __future__ import annotations

from agents.generator.engine import PULL_S
from agents.generator.policy import PolicyActor
from forge_env.runtime.actor import concurrent_endpoint


class BreakableActor(PolicyActor):
    @concurrent_endpoint
    async def break_a_step(self) -> None:
        """Give the engine a token that it has no embedding for, past the check: its next step raises."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        def add() -> None:
            prompt = TokensPrompt(prompt_token_ids=[10**6])
            self._engine._thread.engine.add_request("bad", prompt, SamplingParams(max_tokens=2, detokenize=False))

        await self._engine._command(add)


class DeafActor(PolicyActor):
    """Takes every update over by its number, and loads nothing: its engine goes on with the model of the start."""

    @concurrent_endpoint
    async def pull(self, version: int, seconds: float = PULL_S) -> dict[str, float]:
        await self._engine._command(lambda: self._engine._thread._set_version(version))
        return {"fetch": 0.0, "swap": 0.0, "wake": 0.0}
