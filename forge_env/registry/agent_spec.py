"""Agents by name, as a command line writes them: a kind, a colon, and what that kind wants.

    scripted:expert          the environment's own solution
    scripted:null            answers with nothing
    scripted:FILE.py:fn      a function of the conversation, or module:fn
    openai:MODEL@BASE_URL    a model behind any OpenAI-compatible endpoint
    vllm:MODEL               a Hugging Face folder or hub id, in an engine of this process
    checkpoint:RUN           the model that a finished training run left behind

forge_env imports nothing of `agents`: a kind is a registry string, "module:function", of an async context manager.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from forge_env.core.errors import UserError, nearest
from forge_env.core.protocols import Agent
from forge_env.utils.targets import load

OPENERS = {
    "scripted": "agents.factories:open_scripted",
    "openai": "agents.factories:open_openai",
    "vllm": "agents.generator.local:open_vllm",
    "checkpoint": "agents.generator.local:open_checkpoint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an opener is told beside the name; it says so where a setting means nothing to its kind."""

    env: str
    """The environment's name, whose expert may be meant."""
    temperature: float | None = None
    """Of sampling; None is 1, or what an endpoint does by itself."""
    top_p: float | None = None
    """The share of the probability that is sampled from; None is all of it, or what an endpoint does by itself."""
    deterministic: bool = False
    """Greedy, one request at a time and none of it from a cache, so that a run repeats exactly on one machine."""
    max_tokens: int = 4096
    """The context length: prompt and answers of a row together."""
    concurrency: int = 16
    """Requests at once."""
    requests_per_minute: float | None = None
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds an endpoint's key."""
    answer_seconds: float | None = None
    """For one answer; waiting for a place or a rate limit does not count. None is 1,800 for a script, 120 for an
    endpoint that does not stream, and as long as it takes for a model here."""
    idle_seconds: float | None = None
    """Without a sign of an answer: an endpoint then streams, and sends at least something in this time; an engine here
    computes at least a token. None asks an endpoint for whole answers, and is 300 for an engine."""
    seed: int = 0


def open_agent(spec: str, settings: AgentSettings) -> AbstractAsyncContextManager[Agent]:
    """Return the agent that a name stands for, to be used as `async with`; it is closed at the end.

    Raises:
        UserError: for an unknown kind, here; for the rest of the name or a setting, when it is entered.
    """
    kind, rest = split_agent(spec)
    opener = load(OPENERS[kind])
    return opener(rest, settings)


def split_agent(spec: str) -> tuple[str, str]:
    """Split a name into its kind and the rest.

    Raises:
        UserError: for an unknown kind, or nothing after the colon.
    """
    kind, _, rest = spec.partition(":")
    if kind not in OPENERS:
        raise UserError(f"there is no kind of agent {kind!r}. {nearest(kind, OPENERS)}")
    if not rest:
        raise UserError(f"the agent {kind}: lacks what comes after the colon, as in scripted:expert or vllm:MODEL")
    return kind, rest
