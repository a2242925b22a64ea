"""Writes Harbor tasks, and plays them with messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forge_env
from forge_env import Episode
from forge_env.core.types import Message
from tests.helpers import scripts

TOML = """
[metadata]
category = "greeting"
[environment]
docker_image = "host"
workdir = "/project"
"""
TEST = """#!/bin/sh
mkdir -p /logs/verifier
if [ "$(cat /project/hello.txt 2>/dev/null)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_task(folder: Path, toml: str = TOML, **files: str) -> Path:
    """Write a task; files by path, with "__" for "/"."""
    texts = {"task.toml": toml, "instruction.md": "Write hello to hello.txt.", "tests/test.sh": TEST}
    texts |= {"solution/solve.sh": "#!/bin/sh\nmkdir -p /project && echo hello > /project/hello.txt\n"}
    texts |= {path.replace("__", "/"): text for path, text in files.items()}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


async def play(path: Path, *messages: Message, **options: Any) -> Episode:
    """Play messages in the first task of a folder; without any, the solution."""
    async with forge_env.make(f"harbor:{path}", **options) as factory:
        [task] = factory.tasks("all", count=1)
        return await scripts.play(factory, task, *messages)
