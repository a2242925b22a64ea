"""The coding agents of the npm registry that contrib/external/examples/agents starts, each in a folder of its own."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.external.tests.external_playing import calls
from contrib.workspaces.contract import WorkspaceLimits
from contrib.workspaces.images.build import build_with_forge
from contrib.workspaces.open import open_workspaces
from forge_env.core.episode import Episode
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Message, Task
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.own_environment import node_with

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "contrib" / "external" / "examples" / "agents"
TASK = Task(prompt=({"role": "user", "content": "What is 19 + 23? Write it to the result file."},), target="42")
REWARD = f"{__file__}:grade"
WRITES_RESULT = 'echo "{\\"answer\\": \\"$((19 + 23))\\"}" > "$FORGE_ENV_RESULT"; echo written'
"""A command that only a shell with the program's variables can carry out."""


def grade(answer: str, target: str) -> float:
    """Whether the answer is the target."""
    return float(answer.strip() == target)


@dataclass(frozen=True)
class CodingAgent:
    """An agent, and the tool by which it runs a command."""

    package: str
    start: str
    """Its file in contrib/external/examples/agents."""
    tool: str
    argument: str = "command"
    more: Mapping[str, Any] | None = None
    """Further arguments that the tool needs."""

    def calls(self, *commands: str, text: str = "") -> Message:
        """A message that runs commands."""
        made = [calls(self.tool, **{self.argument: command}, **(self.more or {})) for command in commands]
        return {"role": "assistant", "content": text, "tool_calls": [call for m in made for call in m["tool_calls"]]}

    def script(self, look: str = "ls") -> list[Message | str]:
        """A policy that solves TASK in four turns: text with a call, calls at once, numbers as JavaScript has none."""
        two = self.calls("echo one", "echo two")
        return [self.calls(look, text="I look first."), two, self.calls(WRITES_RESULT), "The result is written."]


AGENTS = {
    "Claude Code": CodingAgent(
        "@anthropic-ai/claude-code@2.1.332", "claude_code.sh", "Bash", more={"description": "x", "timeout": 16000.0}
    ),
    "Codex": CodingAgent("@openai/codex@0.171.0", "codex.sh", "exec_command", "cmd", more={"yield_time_ms": 5000}),
    "Qwen Code": CodingAgent(
        "@qwen-code/qwen-code@0.24.4",
        "qwen_code.sh",
        "run_shell_command",
        more={"is_background": False, "timeout": 16000.0},
    ),
    "opencode": CodingAgent(
        "opencode-ai@1.18.33", "opencode.sh", "bash", more={"description": "x", "timeout": 16000.0}
    ),
}


async def episode_of(name: str, agent: Agent, folder: Path, limits: EpisodeLimits, **options: str) -> Episode:
    """Let a coding agent work on TASK once.

    Args:
        name: of AGENTS.
        agent: the model.
        folder: where an empty working directory is made.
        limits: of the episode.
        options: of the environment, in the place of a start on this machine.
    """
    if not options:
        cwd = folder / name.replace(" ", "-")
        cwd.mkdir()
        options = {"command": _start(name, EXAMPLES), "cwd": str(cwd)}
    async with make("external", reward=REWARD, on_failure="score", **options) as factory:
        return await run_episode(factory, agent, TASK, seed=0, episode_id=name, limits=limits)


def in_sandbox(name: str) -> dict[str, str]:
    """The options that run an agent in a sandbox, which shows its own folder; its start goes there."""
    home = node_with(AGENTS[name].package)
    shutil.copy(EXAMPLES / AGENTS[name].start, home)
    return {"command": _start(name, home), "cwd": str(home), "sandbox": "namespaces"}


def _start(name: str, folder: Path) -> str:
    path = f"PATH={node_with(AGENTS[name].package) / 'node_modules' / '.bin'}:{os.environ['PATH']}"
    return shlex.join(["env", path, "sh", str(folder / AGENTS[name].start)])


async def image_of_codex(folder: Path, name: str) -> None:
    """Build an image of this machine's programs and Codex, which needs no others."""
    package = node_with(AGENTS["Codex"].package) / "node_modules" / "@openai"
    [program] = package.glob("codex-linux-*/vendor/*/bin/codex")
    folder.mkdir()
    os.link(program, folder / "codex")
    shutil.copy(EXAMPLES / "codex.sh", folder)
    (folder / "Dockerfile").write_text("FROM host\nCOPY codex /usr/local/bin/\nCOPY codex.sh /agent.sh\n")
    async with open_workspaces() as workspaces:
        limits = WorkspaceLimits(disk_bytes=2**30)
        await build_with_forge(workspaces, folder, name, limits=limits, timeout_s=60.0)
