"""LocalPolicy: a vLLM engine in this process, for evaluation without services."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from agents.generator.adapter_folder import AdapterFolder, open_adapter
from agents.generator.engine import VLLMEngine
from agents.generator.settings import GATHER_S, EngineSettings
from agents.model_folder import context_length, find_model, has_linear_attention, split_adapter, trained_model
from agents.model_weights import check_finite
from agents.served_tokenizer import REMEDY, check_folder
from agents.token_agent import TokenAgent
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.tokens import Ids
from forge_env.core.turn import Completion, Turn
from forge_env.core.types import Action, Sampling, ToolSpec
from forge_env.utils.deadlines import queued

if TYPE_CHECKING:
    from agents.renderer.conversation_format import Thinking
    from forge_env.registry.agent_spec import AgentSettings

START_SECONDS = 1800.0


class LocalPolicy:
    """A policy with its own engine. Use it with `async with`, on one event loop.

    Args:
        settings: of the engine; `lora_rank` is the adapter's rank.
        deterministic: run one request at a time, without the prefix cache. The other requests of a batch, and cached
            prefixes, change the last bits of sums and sometimes a token.
        answer_seconds: time limit for one answer; None sets none, since the engine ends every request or reports that
            it is broken.
    """

    def __init__(
        self,
        model: str | Path,
        settings: EngineSettings,
        *,
        adapter: AdapterFolder | None = None,
        deterministic: bool = False,
        answer_seconds: float | None = None,
    ) -> None:
        self._model = str(model)
        self._engine = VLLMEngine(self._model, settings)
        self._adapter = adapter
        self._alone = asyncio.Lock() if deterministic else None
        self.answer_seconds = answer_seconds

    async def __aenter__(self) -> Self:
        tensors = None if self._adapter is None else self._adapter.tensors()
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._engine.start()
                if tensors is not None:
                    await self._engine.update_weights(0, tensors)
                # Warm up: the first request triggers compilation.
                await self._engine.generate([0, 1, 2], Sampling(max_tokens=4, seed=0), "warm-up")
        except BaseException as error:
            await self.aclose()
            if not isinstance(error, Exception):
                raise
            reason = " ".join(str(error).split())[:300]
            raise PolicyError(
                f"the engine did not start with {self._model}: {type(error).__name__}: {reason}"
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the engine; running requests end with a PolicyError."""
        await self._engine.close()

    async def generate(self, prompt_ids: Ids, sampling: Sampling, *, request_id: str, session: str) -> Completion:
        if self._alone is None:
            return await self._engine.generate(prompt_ids, sampling, request_id)
        async with queued():
            await self._alone.acquire()  # bounded: the engine answers the request that holds the lock, or breaks
        try:
            await self._engine.clear_prefix_cache()
            return await self._engine.generate(prompt_ids, sampling, request_id)
        finally:
            self._alone.release()


class LocalAgent(TokenAgent):
    """A TokenAgent that keeps to its model's context length."""

    warning = ""
    """What an evaluation says of the model's folder."""

    def __init__(self, model: str, policy: LocalPolicy, *, context: int, **sampling: Any) -> None:
        super().__init__(model, policy, **sampling)
        self._context = context

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        conversation.max_tokens = min(conversation.max_tokens, self._context)
        return await super().act(conversation, tools)


@asynccontextmanager
async def open_vllm(model: str, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open vllm:MODEL, a Hugging Face folder or hub id, or the folder of an adapter, which names its model."""
    settings.refuse("a model in this process", "requests_per_minute", "api_key_env")
    temperature = 1.0 if settings.temperature is None else settings.temperature
    if settings.deterministic:
        if settings.temperature:
            raise UserError(
                f"--deterministic samples greedily, and --temperature is {temperature:g}: leave one of them out"
            )
        temperature = 0.0
    if importlib.util.find_spec("vllm") is None:
        raise UserError("vllm: needs the package vllm: pip install 'forge-env[cpu]', or 'forge-env[gpu]' on a GPU")
    model, adapter_folder = split_adapter(model, settings.adapter)
    folder = find_model(model, option="vllm:")
    adapter = open_adapter(Path(adapter_folder).expanduser(), folder) if adapter_folder else None
    context = min(settings.max_tokens, context_length(folder) or settings.max_tokens)
    thinking = cast("Thinking", settings.thinking or "off")  # the renderer checks it
    tokenizer = check_folder(folder, thinking).tokenizer
    await asyncio.to_thread(check_finite, Path(folder))
    policy = LocalPolicy(
        folder,
        _engine(settings, context, folder=folder, lora_rank=adapter.rank if adapter else 0),
        adapter=adapter,
        deterministic=settings.deterministic,
        answer_seconds=settings.answer_seconds,
    )
    top_p = 1.0 if settings.top_p is None else settings.top_p
    agent = LocalAgent(str(folder), policy, context=context, temperature=temperature, top_p=top_p, thinking=thinking)
    agent.warning = f"{tokenizer}; {REMEDY}" if tokenizer else ""
    async with policy:
        yield agent


@asynccontextmanager
async def open_checkpoint(run: str, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open checkpoint:RUN, weights of a training run, see `run_weights`."""
    async with open_vllm(str(trained_model(run)), settings) as agent:
        yield agent


def _engine(settings: AgentSettings, context: int, *, folder: Path, lora_rank: int = 0) -> EngineSettings:
    import torch

    on_gpu = torch.cuda.is_available()
    is_fast = on_gpu and not settings.deterministic  # as the engine of a run is
    return EngineSettings(
        max_model_len=context,
        # vLLM compiles anew for each number.
        max_requests=1 if settings.deterministic else max(settings.concurrency, 128 * is_fast),
        dtype="bfloat16" if on_gpu or has_linear_attention(folder) else "float32",
        kv_cache_gib=0.0 if on_gpu else EngineSettings().kv_cache_gib,
        gather_s=0.0 if on_gpu or settings.deterministic else GATHER_S,
        stall_seconds=EngineSettings().stall_seconds if settings.idle_seconds is None else settings.idle_seconds,
        seed=settings.seed,
        lora_rank=lora_rank,
        cuda_graphs=is_fast,
        worker_process=is_fast,
    )
