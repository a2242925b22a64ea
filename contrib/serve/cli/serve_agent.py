"""`forge-env serve --agent`: a model's API for agents elsewhere. Their sessions are recorded."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrib.common.server_settings import ServeSettings
from forge_env.cli.output import last_words, stdout_to_stderr
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import EpisodeLimits
from forge_env.utils.run_async import run_async


def serve_agent(
    agent: str,
    options: dict[str, Any],
    settings: ServeSettings,
    announce: Callable[[str], None],
    *,
    as_json: bool,
    out: Path | None,
    limit: Sequence[str],
    concurrency: int,
    public_url: str,
    thinking: str | None,
    **of_plan: Any,
) -> int:
    """Serve an agent until Ctrl-C or SIGTERM. With `as_json`, stdout holds only what `announce` prints.

    Args: of_plan: fields of an `EvalPlan`: split, tasks, seed, temperature, top_p, adapter.
    """
    from contrib.external.served import server
    from forge_env.evaluation.plan import EvalPlan, limits_of, thinking_of
    from forge_env.registry.agent_spec import AgentSettings
    from forge_env.rollout.factory import make

    if out is None:
        raise UserError("serve --agent needs --out FOLDER: where the episodes of the sessions are recorded")
    if concurrency < 1:
        raise UserError(f"--concurrency {concurrency} is no number of requests: give 1 or more")
    if public_url and not public_url.startswith(("http://", "https://")):
        raise UserError(f"--public-url {public_url} is no URL: give one like https://agents.example.org")
    for name in ("listen", "token_file", "public_url", "max_request_bytes"):
        if name in options:
            raise UserError(f"--option {name} is for training: leave it out and set --host, --port and their like")
    env, options = "sessions", {"listen": "127.0.0.1:0", **options}  # so that what reads the folder can make it
    limits = replace(limits_of(agent, make(env, **options)), step_seconds=settings.idle_seconds)
    plan = EvalPlan(
        env=env,
        agent=agent,
        options=options,
        thinking=thinking or thinking_of(agent),
        limits=replace(limits, **parse_limits(limit)),
        **of_plan,
    )
    agent_settings = AgentSettings(
        env=env,
        temperature=plan.temperature,
        top_p=plan.top_p,
        thinking=plan.thinking,
        adapter=plan.adapter,
        max_tokens=plan.limits.max_tokens,
        concurrency=concurrency,
        seed=plan.seed,
    )
    with os.fdopen(os.dup(1), "w") as stdout, stdout_to_stderr(as_json):  # engines print to stdout

        def announce_there(url: str) -> None:
            with redirect_stdout(stdout if as_json else sys.stdout):
                announce(url)

        serve = server.serve_agent(plan, out, settings, agent_settings, public_url=public_url, announce=announce_there)
        try:
            run_async(serve)
        except (KeyboardInterrupt, SystemExit):
            last_words(f"the finished sessions are in {out}; the same command adds to them")
            raise
    return 0


def parse_limits(texts: Sequence[str], *, for_env: bool = False) -> dict[str, Any]:
    """Parse NAME=VALUE pairs of limits of an episode.

    Args:
        texts: the pairs.
        for_env: whether an environment is served; its steps have a limit of their own.
    """
    types = typing.get_type_hints(EpisodeLimits)
    limits: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name == "step_seconds" and not for_env:
            raise UserError("--limit step_seconds is --idle-seconds here: a session without a request for so long ends")
        if name not in types:
            raise UserError(f"--limit {text!r} names no limit. {nearest(name, types)}")
        try:
            limits[name] = types[name](value)
        except ValueError:
            raise UserError(f"--limit {text!r} has no number after the =, as in --limit max_turns=16") from None
    return limits
