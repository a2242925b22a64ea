"""The coding agents of the npm registry that examples/agents starts, each installed into a folder of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.episode import Episode
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Message, Task
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.envs.external.external_playing import calls

ROOT = Path(__file__).resolve().parents[3]
INSTALL_SECONDS = 300.0
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
    """Its file in examples/agents."""
    tool: str
    argument: str = "command"
    more: Mapping[str, Any] | None = None
    """Further arguments that the tool needs."""

    def calls(self, *commands: str, text: str = "") -> Message:
        """A message that runs commands."""
        made = [calls(self.tool, **{self.argument: command}, **(self.more or {})) for command in commands]
        return {"role": "assistant", "content": text, "tool_calls": [call for m in made for call in m["tool_calls"]]}

    def script(self) -> list[Message | str]:
        """A policy that solves TASK in four turns: text with a call, calls at once, numbers as JavaScript has none."""
        two = self.calls("echo one", "echo two")
        return [self.calls("ls", text="I look first."), two, self.calls(WRITES_RESULT), "The result is written."]


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


def install(package: str, folder: Path) -> Path:
    """Install a package into a folder; return the folder of its programs. Skips the test where that fails."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    kept = ["--prefix", str(folder), "--cache", str(folder / "cache")]  # nothing of it stays at home
    command = [npm, "install", "--no-audit", "--no-fund", "--no-update-notifier", *kept, package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"{package} cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / "node_modules" / ".bin"


async def episode_of(name: str, programs: Path, agent: Agent, folder: Path, limits: EpisodeLimits) -> Episode:
    """Let a coding agent work on TASK once, in an empty folder.

    Args:
        name: of AGENTS.
        programs: the folder of its program.
        agent: the model.
        folder: where the working directory is made.
        limits: of the episode.
    """
    cwd = folder / name.replace(" ", "-")
    cwd.mkdir()
    path = f"PATH={programs}:{os.environ['PATH']}"
    command = shlex.join(["env", path, "sh", str(ROOT / "examples" / "agents" / AGENTS[name].start)])
    async with make("external", command=command, reward=REWARD, on_failure="score", cwd=str(cwd)) as factory:
        return await run_episode(factory, agent, TASK, seed=0, episode_id=name, limits=limits)
