"""Compares an endpoint's prompts with the prompts of the training run that it serves, if it is vLLM's server."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from contrib.common.http_clients import connection
from forge_env.core.errors import UserError
from forge_env.core.types import Message, ToolSpec
from forge_env.records.run_files import trained_config

if TYPE_CHECKING:
    from contrib.chat.agent import ChatAgent

_SECONDS = 30.0


async def compare_rendering(
    agent: ChatAgent, prompt: Sequence[Message], tools: Sequence[ToolSpec], *, like: str = ""
) -> str:
    """Play a trial conversation, and name the first difference of the endpoint's tokens from the run's; "" if there is
    none.

    Args:
        agent: of the endpoint.
        like: the folder of the run; "" is the folder that the endpoint names as its model's, if it is on this machine.
    """
    if importlib.util.find_spec("tokenizers") is None:  # an endpoint can be evaluated without it
        if like:
            raise UserError(f"--like {like} needs the package tokenizers: pip install 'forge-env[agents]'")
        return ""
    from agents.renderer.rendering import Renderer
    from agents.renderer.served import difference
    from agents.renderer.trial import prompts, trial

    folder = Path(like).expanduser() if like else None
    headers = agent.client.headers()
    async with httpx.AsyncClient(timeout=_SECONDS, headers=headers, **connection(agent.client.base_url)) as client:
        folder = folder or await _served_folder(client, agent)
        if folder is None:
            return ""
        if (folder / "adapter_config.json").is_file():
            folder = folder.parent  # the run's, where the adapter's model is
        model = folder / "model" if (folder / "model").is_dir() else folder
        if not (model / "tokenizer.json").is_file():
            if not like:
                return ""
            raise UserError(f"--like {like} holds no model/ with a tokenizer.json: name a finished training run")
        env = trained_config(model.parent) or {}
        try:
            renderer = Renderer(model, thinking=env.get("thinking") or "template")
            turns = trial(renderer, prompt, tools)
        except UserError:  # a family that cannot be trained, or episodes that begin differently
            if like:
                raise
            return ""
        for messages, expected in prompts(turns):
            try:
                tokens = await _tokenize(client, agent, messages, tools)
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                return f"{agent!r} was not compared with {folder}: {error}" if like else ""
            if problem := difference(renderer, expected, tokens):
                return (
                    f"{agent!r} does not render what {folder} was trained on, so that its model may do worse there: "
                    f"{problem}; `forge-env serve {folder}` renders the same"
                )
    return ""


async def _served_folder(client: httpx.AsyncClient, agent: ChatAgent) -> Path | None:
    """The folder that the endpoint names as the source of its model."""
    try:
        answer = await client.get(f"{agent.client.base_url}/models")
        [root] = [model.get("root") for model in answer.json()["data"] if model["id"] == agent.client.model]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Path(root) if isinstance(root, str) and Path(root).is_absolute() and Path(root).is_dir() else None


async def _tokenize(
    client: httpx.AsyncClient, agent: ChatAgent, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> list[int]:
    body: dict[str, Any] = {"model": agent.client.model, "messages": agent.sent(messages), "tools": list(tools) or None}
    body["chat_template_kwargs"] = agent.client.extra_body.get("chat_template_kwargs")
    answer = await client.post(f"{agent.client.base_url.removesuffix('/v1')}/tokenize", json=body)
    answer.raise_for_status()
    return [int(token) for token in answer.json()["tokens"]]
