"""forge-env serve --agent with a real engine: what agents elsewhere were answered is recorded token by token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from contrib.external.tests.served.serving import TOKEN, forge_env, serving
from forge_env.core.episode import read_jsonl
from tests.helpers.runs import SHORT, UNTRAINED, start  # noqa: F401

EXAMPLE = Path(__file__).resolve().parents[4] / "contrib" / "external" / "examples" / "session_agent.py"


@pytest.mark.slow
@pytest.mark.timeout(300)  # one start of the engine
def test_sessions_of_an_engine_are_token_exact(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--limit", "max_turn_tokens=60", "--limit", "max_tokens=512", "--concurrency", "4")
    with serving(tmp_path, *options, agent=f"vllm:{tiny_model}") as server:
        sessions = [server.take(prompt="How many pens?") for _ in range(2)]
        first, second = sessions
        client = openai.OpenAI(base_url=first["base_url"], api_key=first["api_key"], timeout=120)
        messages: list[Any] = list(first["task"]["messages"])
        for _ in range(2):  # what is appended only stays one row
            reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=40)
            messages += [reply.choices[0].message, {"role": "user", "content": "And boxes?"}]
        claude = anthropic.Anthropic(base_url=second["anthropic_base_url"], api_key=second["api_key"], timeout=120)
        asked: Any = second["task"]["messages"]
        claude.messages.create(model="policy", max_tokens=40, messages=asked)
        done = [server.finish(session, reward=1).json() for session in sessions]
        assert [d["outcome"] for d in done] == ["scored", "scored"], done
        assert server.end() == 143
    episodes = {e.id: e for e in read_jsonl(tmp_path / "run" / "episodes.jsonl")}
    rows = [len(episodes[d["episode"]].rows) for d in done]
    assert rows == [1, 1] and all(e.is_trainable for e in episodes.values())
    audited = forge_env("audit", "run", "--model", str(tiny_model), "--json", folder=tmp_path)
    result = json.loads(audited.stdout)
    assert (audited.returncode, result["episodes"], result["turns"], result["problems"]) == (0, 2, 3, []), audited


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_agents_elsewhere_train_the_model(start: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A run hands its episodes out, and the example's client, in a process that the run does not know, plays them."""
    from tests.helpers.ports import free_ports

    [port] = free_ports(1)
    monkeypatch.setenv("FORGE_ENV_TOKEN", TOKEN)
    run = start(
        "trainers.grpo", "--env", "sessions", "--env.options.listen", f"127.0.0.1:{port}", "--steps", "2",
        "--env.options.tasks", "math", "--model", str(tiny_model), *UNTRAINED, *SHORT, "--dataset.held_out", "4",
        "--grpo.n_samples", "4", "--training.batch_size", "2",
        "--training.entropy_coef", "0.01",  # so that its episodes are computed, whatever their rewards
    )  # fmt: skip
    client = subprocess.Popen(
        [sys.executable, EXAMPLE, f"http://127.0.0.1:{port}", "--workers", "6", "--gone-seconds", "120"],
        env={"FORGE_ENV_TOKEN": TOKEN, "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        console = run.end()
        assert run.process.returncode == 0, console
    finally:
        client.kill()
        client.communicate()
    run.assert_nothing_left()
    train = list(read_jsonl(run.output / "episodes" / "train.jsonl"))
    assert len(train) == 2 * 2 * 4
    assert all(episode.is_trainable and episode.env == "sessions" for episode in train)
    assert len({episode.info["session"]["id"] for episode in train}) == 16
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    assert all(line["mean_abs_logprob_difference"] < 1e-5 for line in lines if line["phase"] == "train")
