"""Starts the program of an episode: its folder, its task, its environment variables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from contrib.common.http_clients import no_proxy
from contrib.external.gateway import MODEL
from contrib.external.program import RESULT, Program, new_folder
from contrib.external.session import ProgramSession
from contrib.external.setup import ProgramSetup
from forge_env.core.errors import EnvError
from forge_env.core.types import Message, Task

TASK, _PROMPT = "task.json", "prompt.txt"


async def start_program(setup: ProgramSetup, session: ProgramSession, task: Task, seed: int) -> Program:
    folder = new_folder()
    try:
        prompt = prompt_of(task.prompt)
        (folder / TASK).write_text(describe(task, task.metadata, seed), encoding="utf-8")
        (folder / _PROMPT).write_text(prompt, encoding="utf-8", errors="replace")
        return await Program.start(
            [word.replace("{prompt}", prompt) for word in setup.command],
            folder=folder,
            variables=variables_of(setup, session, folder, seed),
            cwd=setup.cwd,
            stdin=folder / _PROMPT,
            sandbox_port=setup.gateway.port if setup.sandbox else None,
        )
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise EnvError(f"the program cannot be started: {error}") from error
        raise


def prompt_of(messages: Sequence[Message]) -> str:
    """Return what the user has said last."""
    return next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")


def describe(task: Task, metadata: Mapping[str, Any], seed: int) -> str:
    """Return a task without its target as JSON, for the program."""
    fields = {"id": task.id, "messages": task.prompt, "metadata": dict(metadata), "seed": seed}
    return json.dumps(fields, default=repr)


def variables_of(setup: ProgramSetup, session: ProgramSession, folder: PurePath, seed: int) -> dict[str, str]:
    """The environment variables of a program with its files in a folder."""
    base_url = setup.gateway.base_url
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": session.token,
        "OPENAI_MODEL": MODEL,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": session.token,
        "ANTHROPIC_MODEL": MODEL,
        "FORGE_ENV_TASK": str(folder / TASK),
        "FORGE_ENV_RESULT": str(folder / RESULT),
        "FORGE_ENV_SEED": str(seed),
        "TMPDIR": str(folder),
        # A program in Python that is killed must have written what it printed.
        "PYTHONUNBUFFERED": "1",
        **no_proxy(setup.host),
    }
