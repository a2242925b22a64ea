"""A PolicyActor that a test can break; imported by Monarch's child processes."""

from __future__ import annotations

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
