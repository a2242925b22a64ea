"""Names of agents on a command line: a kind, a colon, and the argument of that kind.

    scripted:expert          the environment's own solution
    scripted:null            answers with an empty text
    scripted:FILE.py:fn      a function of the conversation, or module:fn
    vllm:MODEL               a Hugging Face folder, a hub id or an adapter's folder, in an engine in this process
    checkpoint:RUN           the last weights of a training run; RUN@best, RUN@40 and RUN/checkpoints/step_000040 others

forge_env does not import `agents`: each kind maps to the "module:function" of an async context manager. Folders of
contrib add kinds, in their table `agents`.
"""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields

from forge_env.core.env import Env
from forge_env.core.errors import UserError, nearest
from forge_env.core.protocols import Agent
from forge_env.registry.contrib import rows
from forge_env.utils.targets import load

OPENERS = {
    "scripted": "agents.scripted:open_scripted",
    "vllm": "agents.generator.local:open_vllm",
    "checkpoint": "agents.generator.local:open_checkpoint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent, most of them as in `EvalSettings`. A kind refuses those that it does not read."""

    env: str
    """Name of the environment, for its expert."""
    env_class: type[Env] | None = None
    temperature: float | None = None
    top_p: float | None = None
    deterministic: bool = False
    thinking: str | None = None
    adapter: str = ""
    max_tokens: int = 4096
    """Context length: tokens of a row, prompt and answers together."""
    concurrency: int = 16
    requests_per_minute: float | None = None
    api_key_env: str = "OPENAI_API_KEY"
    answer_seconds: float | None = None
    idle_seconds: float | None = None
    seed: int = 0

    def refuse(self, kind: str, *names: str) -> None:
        """Refuse a setting of these names if it is given: the kind of agent does not read it."""
        for field in fields(self):
            if field.name in names and (value := getattr(self, field.name)) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise UserError(f"{field.name} is {value}, and {kind} does not use it: leave {option} out")


def open_agent(spec: str, settings: AgentSettings) -> AbstractAsyncContextManager[Agent]:
    kind, argument = split_agent(spec)
    open_kind = load(_openers()[kind])
    return open_kind(argument, settings)


def split_agent(spec: str) -> tuple[str, str]:
    kind, _, argument = spec.partition(":")
    if kind not in (kinds := _openers()):
        hint = "" if ":" in spec else f" A model is vllm:{spec} or openai:{spec}@URL"
        raise UserError(f"there is no kind of agent {kind!r}. {nearest(kind, kinds)}{hint}")
    if not argument:
        raise UserError(f"the agent {kind}: lacks what comes after the colon, as in scripted:expert or vllm:MODEL")
    return kind, argument


def _openers() -> dict[str, str]:
    return OPENERS | {name: row.target for name, row in rows("agents").items()}


def model_at(endpoint: str) -> str:
    """The model of "MODEL@BASE_URL". Its name may hold an @ itself; the URL may hold a password."""
    return re.split(r"@(?=https?://)", endpoint, maxsplit=1)[0]
