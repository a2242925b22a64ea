"""An agent package from PyPI in an interpreter of its own: several install a top-level `agents`, as we do."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agents.renderer.decoding import open_decoder
from forge_env.core.episode import write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.records.audit import audit
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.envs.external.external_playing import calls, says

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "openai-agents==0.24.0"
PROGRAM = Path(__file__).with_name("openai_agents_program.py")
INSTALL_SECONDS = 240.0


@pytest.fixture(scope="session")
def interpreter() -> Path:
    """The Python of an environment that holds the package; made once, in .cache/."""
    folder = ROOT / ".cache" / PACKAGE.replace("==", "-")
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists():
        return python
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    environ = {"UV_CACHE_DIR": str(ROOT / ".cache" / "uv"), **os.environ}
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--python", python, PACKAGE],
    ):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if done.returncode:
            pytest.skip(f"{PACKAGE} cannot be installed: {done.stderr.strip()[-300:]}")
    ready.touch()
    return python


async def test_openai_agents_runs_as_it_is_and_leaves_exact_tokens(
    interpreter: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # ours would hide the package's `agents`
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")  # it would send its traces to OpenAI
    agent = says(tiny_model, calls("add", a=19, b=23), "42", calls("add", a=42, b=1), "43")
    task = Task(prompt=({"role": "user", "content": "What is 19 + 23?"},))
    async with make("external", command=shlex.join([str(interpreter), str(PROGRAM)])) as factory:
        limits = EpisodeLimits(max_tokens=10_000)
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)

    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), episode.error
    assert '"42", "43"' in episode.info["program"]["stdout"]
    assert "site-packages/agents/__init__.py" in episode.info["program"]["stdout"]
    assert len(episode.rows) == 1, "its second run goes on with the messages of the first"
    asked = [prompt for prompt, _, _ in agent._policy.asked]  # type: ignore[attr-defined]
    assert episode.rows[0].token_ids == (*asked[-1], *episode.turns[-1].token_ids)
    assert [m["content"] for m in episode.messages if m["role"] == "tool"] == ["42", "43"]
    assert [m["content"] for m in episode.messages if m["role"] == "system"] == ["Add with the tool."]
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, [episode])
    assert audit(file, open_decoder(tiny_model)).problems == []
