"""`forge-env serve`."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_env.cli.evaluate import parse_options
from forge_env.cli.output import Json, emit, note, say
from forge_env.core.errors import UserError, nearest
from forge_env.utils.run_async import run_async

if TYPE_CHECKING:
    from contrib.common.server_settings import ServeSettings

SERVERS = {
    "http": "contrib.serve.env_server:open_app",
    "openenv": "contrib.serve.openenv:open_app",
    "mcp": "contrib.serve.mcp:open_app",
}
"""Protocol -> "module:function" that opens its app. All but http's also take `PlayOptions`, since their clients play
episodes that run here."""

_TOKEN = "Token that every request needs; else FORGE_ENV_TOKEN, or one that is made and printed."
_LIMIT = "With --agent, openenv or mcp: limit of an episode, such as max_turns=16; may be repeated."
_AGENT = "In place of --env: scripted:FILE.py:FUNCTION, openai:MODEL@BASE_URL, vllm:MODEL or checkpoint:RUN."
_RUN = (
    "Folder of a training run, also RUN@best or RUN@40, of a model or an adapter, or a hub id, to serve with OpenAI's "
    "API by vLLM."
)
_LORA = "With RUN: folder of an adapter of the model, also as NAME=FOLDER; may be repeated."
_AS = "Protocol: http, for forge_env.make('http://...'); openenv, for OpenEnv's clients; mcp, for agents with tools."


def serve(
    run: Annotated[str, typer.Argument(help=_RUN, show_default=False)] = "",
    env: Annotated[str, typer.Option(help="Name or target of the environment to serve.")] = "",
    option: Annotated[
        list[str], typer.Option(help="Option of the environment, such as level=2; may be repeated.")
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    tools: Annotated[list[str], typer.Option(help="Value of the environment's option tools; may be repeated.")] = [],  # noqa: B006
    protocol: Annotated[str, typer.Option("--as", help=_AS)] = "http",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 0,
    token: Annotated[str, typer.Option(help=_TOKEN)] = "",
    token_file: Annotated[Path | None, typer.Option(help="File that holds the token.")] = None,
    max_sessions: Annotated[int, typer.Option(help="Open sessions, one for each episode.")] = 1024,
    idle_seconds: Annotated[float, typer.Option(help="A session without a request for so long is ended.")] = 3600.0,
    max_request_bytes: Annotated[int, typer.Option(help="Size limit of a request.")] = 16 * 2**20,
    agent: Annotated[str, typer.Option(help=_AGENT)] = "",
    out: Annotated[Path | None, typer.Option(help="With --agent, openenv or mcp: folder of the episodes.")] = None,
    limit: Annotated[list[str], typer.Option(help=_LIMIT)] = [],  # noqa: B006
    split: Annotated[str, typer.Option(help="Of the tasks that are handed out.")] = "test",
    tasks: Annotated[int, typer.Option(help="Tasks that are handed out, of each split.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the tasks; with --agent also of the episodes.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="With --agent: of sampling.")] = None,
    top_p: Annotated[float | None, typer.Option(help="With --agent: of sampling.")] = None,
    thinking: Annotated[str | None, typer.Option(help="With RUN or --agent: off, on or template.")] = None,
    lora: Annotated[list[str], typer.Option(help=_LORA)] = [],  # noqa: B006
    adapter: Annotated[str, typer.Option(help="With --agent: folder of an adapter in PEFT's format.")] = "",
    concurrency: Annotated[int, typer.Option(help="With --agent: requests to the model at the same time.")] = 16,
    public_url: Annotated[str, typer.Option(help="With --agent: URL of this server, where a proxy is before it.")] = "",
    as_json: Json = False,
) -> int:
    """Serve a trained model, an environment, or an agent's model, to others, until Ctrl-C or SIGTERM."""
    from contrib.common.http_server import free_port
    from contrib.common.server_settings import ServeSettings, read_token
    from contrib.serve.cli.serve_agent import serve_agent
    from contrib.serve.env_server import serve_env

    _check_served(run, env, agent, lora, protocol)
    text, is_new = read_token(token, token_file)
    settings = ServeSettings(
        token=text,
        host=host,
        port=port,
        max_sessions=max_sessions,
        idle_seconds=idle_seconds,
        max_request_bytes=max_request_bytes,
    )
    free = free_port(host, port)  # asked before anything is started
    if run:
        return _serve_run(
            run, lora, thinking, replace(settings, port=free), token=text if is_new else "", as_json=as_json
        )
    facts = {"served": env or agent, "as": protocol if env else "a model's API", "token": text if is_new else ""}

    def announce(url: str) -> None:
        show_address({**facts, "url": url}, is_local=settings.is_local, as_json=as_json)
        if protocol == "openenv":
            note(f"an OpenEnv client connects to {url}/TOKEN, or sends the header Authorization: Bearer TOKEN")

    if agent:
        return serve_agent(
            agent,
            parse_options(option, tools),
            settings,
            announce,
            as_json=as_json,
            out=out,
            limit=limit,
            concurrency=concurrency,
            public_url=public_url,
            thinking=thinking,
            split=split,
            tasks=tasks,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            adapter=adapter,
        )
    opener = _opener(protocol, split, tasks, seed, limit, out)
    run_async(serve_env(opener, env, parse_options(option, tools), settings, announce))
    return 0


def _check_served(run: str, env: str, agent: str, lora: Sequence[str], protocol: str) -> None:
    if [bool(run), bool(env), bool(agent)].count(True) != 1:
        raise UserError(
            "serve needs one of three: RUN, whose model is served, --env NAME, an environment, or --agent AGENT"
        )
    if lora and not run:
        raise UserError("--lora is for the model of a RUN: leave it out, or name the run before it")
    if protocol not in SERVERS:
        raise UserError(f"--as {protocol!r} is no protocol. {nearest(protocol, SERVERS)}")


def _serve_run(
    run: str, lora: Sequence[str], thinking: str | None, settings: ServeSettings, *, token: str, as_json: bool
) -> int:
    """Serve the model of a run. `token` is shown: it is one that was made."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"to serve {run} the package vllm is needed: pip install 'forge-env[cpu]', or 'forge-env[gpu]' on a GPU"
        )
    from contrib.serve.openai_server import ModelServer, serve_model

    server = ModelServer(run=run, adapters=lora, thinking=thinking, host=settings.host, port=settings.port)

    def announce(name: str, url: str, options: Sequence[str]) -> None:
        facts = {"served": name, "as": "OpenAI's API", "url": url, "token": token}
        show_address(facts, is_local=settings.is_local, as_json=as_json)
        note(f"evaluate it with --agent openai:{name}@{url}, and the token in OPENAI_API_KEY")
        note(f"vLLM's server has these options: {shlex.join(options)}")

    note(f"vLLM starts with {run}, which takes a minute or more")
    run_async(serve_model(server, settings.token, announce))
    return 0


def _opener(protocol: str, split: str, tasks: int, seed: int, limit: Sequence[str], out: Path | None) -> Any:
    """The function that opens the app of a protocol; http's knows of no episodes: its clients play them."""
    from contrib.serve.cli.serve_agent import parse_limits
    from contrib.serve.desk import PlayOptions
    from forge_env.utils.targets import load

    opener = load(SERVERS[protocol])
    if protocol != "http":
        limits = parse_limits(limit, for_env=True)
        return functools.partial(opener, play=PlayOptions(split=split, tasks=tasks, seed=seed, limits=limits, out=out))
    if out is not None or limit:
        raise UserError(
            "--out and --limit are for --agent, --as openenv and --as mcp: with --as http the client plays and records "
            "the episodes, under its own limits"
        )
    return opener


def show_address(server: dict[str, Any], *, is_local: bool, as_json: bool) -> None:
    """Print where a server listens and its token, if that was made for it; one JSON object with `as_json`.

    Args:
        server: "served", "as", "url", and "token", which is empty if the user has given it.
        is_local: whether only this machine can connect.
        as_json: print one JSON object.
    """
    if as_json:
        emit({name: value for name, value in server.items() if name != "token" or value})
    else:
        say(f"{server['served']} is served as {server['as']} at {server['url']}")
        if server["token"]:
            say(f"token: {server['token']}")
    sys.stdout.flush()
    note("the server runs until Ctrl-C; whoever has the token can use it")
    if not is_local:
        note("the token and all data travel unencrypted: put a proxy with TLS before this address")
