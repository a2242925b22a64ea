"""forge-env serve --agent, as real processes: sessions of real clients, what is recorded, and what a kill leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from contrib.external.tests.served.conftest import error_of
from contrib.external.tests.served.serving import TOKEN, Server, marked, serving
from forge_env.cli.main import main
from forge_env.core.episode import read_jsonl
from forge_env.core.types import Outcome
from forge_env.evaluation.folder import read_faults
from tests.helpers.waiting import wait_until

EXAMPLE = Path(__file__).resolve().parents[4] / "contrib" / "external" / "examples" / "session_agent.py"
BOUNDS = ("--max-sessions", "3", "--idle-seconds", "600")
KILLED = """
import json, os, signal, sys, urllib.request
def post(url, token, body):
    headers = {"Authorization": f"Bearer {token}"}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
session = post(sys.argv[1] + "/sessions", sys.argv[2], {"prompt": "killed", "limits": {"step_seconds": 1}})
chat = {"model": "policy", "messages": [{"role": "user", "content": "go"}]}
post(session["base_url"] + "/chat/completions", session["api_key"], chat)
os.kill(os.getpid(), signal.SIGKILL)
"""


def check_clients(server: Server) -> None:
    """The clients of OpenAI and Anthropic, each in a session of its own."""
    task = {"prompt": "What is 1 + 2?", "target": "3", "metadata": {"level": 1}, "seed": 7, "id": "sum"}
    session = server.take(**task, limits={"max_turns": 3})
    assert session["base_url"] == f"{server.url}/v1" and session["anthropic_base_url"] == server.url
    assert (session["seed"], session["limits"]["max_turns"], session["task"]["id"]) == (7, 3, "sum")
    client = openai.OpenAI(base_url=session["base_url"], api_key=session["api_key"])
    assert client.models.list().data[0].id == "policy"
    reply = client.chat.completions.create(model="policy", messages=session["task"]["messages"])
    assert reply.choices[0].message.content == "3"
    assert client.responses.create(model="policy", input="And 2 + 1?").output_text == "3"
    done = server.finish(session, reward=1, answer="three").json()
    assert (done["outcome"], done["reward"], done["turns"], done["episode"]) == ("scored", 1.0, 2, "sum/0")

    session = server.take(**task)
    claude = anthropic.Anthropic(base_url=session["anthropic_base_url"], api_key=session["api_key"])
    messages: Any = session["task"]["messages"]
    assert claude.messages.create(model="policy", max_tokens=9, messages=messages).content[0].text == "3"  # type: ignore[union-attr]
    assert server.finish(session, reward=0).json()["episode"] == "sum/1"


def check_bounds(server: Server) -> None:
    """Sessions at once, limits that may only be lowered, and a killed client."""
    open_sessions = [server.take(prompt=f"p{i}") for i in range(3)]
    busy = server.client.post("/sessions", json={})
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert error_of(busy) == "3 sessions are open, which is all that may be at once: ask again"
    server.chat(open_sessions[0])
    assert server.finish(open_sessions[0], reward=1).status_code == 200
    more = server.client.post("/sessions", json={"limits": {"max_turns": 9}})
    assert more.status_code == 400 and "max_turns is 9; it is above 0 and at most 8" in error_of(more)
    killed = subprocess.run([sys.executable, "-c", KILLED, server.url, TOKEN], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    for session in open_sessions[1:]:
        server.finish(session, error="the test is over")
    assert server.take(prompt="left open")["id"]


def be_killed(folder: Path) -> None:
    """A server that is killed keeps what was finished."""
    with serving(folder, *BOUNDS) as server:
        for _ in range(2):
            session = server.take(id="t", prompt="p")
            server.chat(session)
            assert server.finish(session, reward=1).json()["outcome"] == "scored"
        server.chat(server.take(id="t", prompt="p"))
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        assert not marked(server.mark)
    lines = folder / "run" / "episodes.jsonl"
    assert [e.id for e in read_jsonl(lines)] == ["t/0", "t/1"]
    with lines.open("a") as file:
        file.write('{"reward": 1.0, "ta')  # as a kill within a write leaves it


def test_a_killed_server_goes_on_and_its_sessions_are_read_by_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_killed(tmp_path)
    with serving(tmp_path, *BOUNDS) as server:
        session = server.take(id="t", prompt="p")
        server.chat(session)
        assert server.finish(session, reward=0).json()["episode"] == "t/2"
        check_clients(server)
        check_bounds(server)
        faults = tmp_path / "run" / "faults.jsonl"
        # of the killed client, by its deadline
        wait_until(lambda: "its agent sent nothing for 1 s (step_seconds)" in faults.read_text())
        assert server.end() == 143
        assert "the finished sessions are in run" in server.errors.read_text()
    episodes = list(read_jsonl(tmp_path / "run" / "episodes.jsonl"))
    assert [(e.id, e.outcome) for e in episodes[:3]] == [(f"t/{i}", Outcome.SCORED) for i in range(3)]
    assert [(e.id, e.reward, e.seed, e.success) for e in episodes[3:5]] == [
        ("sum/0", 1, 7, True),
        ("sum/1", 0, 7, False),
    ]
    assert episodes[3].task.target == "3" and episodes[3].info["session"]["answer"] == "three"
    reasons = {e.task.prompt[0]["content"]: e.error for e in read_faults(faults)}
    assert reasons["killed"].startswith("the session was not finished")
    assert reasons["left open"] == "the server was stopped before the session was finished"
    assert reasons["p1"] == "the session's agent gave up: the test is over"
    figures = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert (figures["episodes"], figures["successes"], figures["faults"]) == (6, 4, {"EnvError": 4})

    (tmp_path / "grade.py").write_text("def grade(answer, target):\n    return float(answer == target)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["score", "run", "--reward", "grade.py:grade", "--json"]) == 0
    assert '"answers": 6' in capsys.readouterr().out
    for command in (
        ["view", "run", "--export", "page.html"],
        ["export", "run", "--to", "sft", "--out", "sft.jsonl"],
        ["audit", "run"],
    ):
        assert main(command) == 0
    ids = [json.loads(line)["id"] for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert (len(ids), len(set(ids))) == (7, 6), "a session that asked twice, each time anew, has two conversations"
    capsys.readouterr()
    monkeypatch.setenv("FORGE_ENV_TOKEN", TOKEN)
    assert main(["serve", "--agent", "scripted:model.py:model", "--out", "run", "--seed", "1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "choose another --out" in error


def test_a_server_hands_out_tasks_and_the_example_plays_them(tmp_path: Path) -> None:
    with serving(tmp_path, "--option", "tasks=math", "--tasks", "4") as server:
        first = server.take()
        again = server.take(task_id=first["task"]["id"])
        assert first["task"] == again["task"]
        for body, status, words in [
            ({"prompt": "mine"}, 400, "hands out its own tasks"),
            ({"task_id": "none"}, 404, "this server has no task 'none'"),
        ]:
            refused = server.client.post("/sessions", json=body)
            assert refused.status_code == status and words in error_of(refused)
        for session in (first, again):
            server.chat(session)
            reward = server.finish(session, answer="no number").json()["reward"]
            assert reward == 0, "the environment of the tasks scores the answer"
        played = subprocess.run(
            [sys.executable, EXAMPLE, server.url, "--workers", "2", "--sessions", "3", "--gone-seconds", "1"],
            env={"FORGE_ENV_TOKEN": TOKEN, "PATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert played.stdout == "6 sessions were scored\n", played.stderr
        assert server.end(signal.SIGINT) == 130
    episodes = list(read_jsonl(tmp_path / "run" / "episodes.jsonl"))
    assert sorted(sum(e.task.id == t for e in episodes) for t in {e.task.id for e in episodes}) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "run", "--env", "math"], "serve needs one of three"),
        ([], "serve --agent needs --out FOLDER"),
        (["--out", "run", "--limit", "turns=3"], "Did you mean max_turns?"),
        (["--out", "run", "--limit", "max_turns=x"], "no number after the ="),
        (["--out", "run", "--limit", "max_turns=0"], "max_turns is 0"),
        (["--out", "run", "--limit", "step_seconds=3"], "is --idle-seconds here"),
        (["--out", "run", "--option", "listen=127.0.0.1:1"], "--option listen is for training"),
        (["--out", "run", "--public-url", "agents"], "--public-url agents is no URL"),
        (["--out", "run", "--token", "short"], "the token of --token"),
        (["--out", "run", "--option", "tasks=maths"], "Did you mean math?"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("def model(messages): ...\n")
    assert main(["serve", "--agent", "scripted:model.py:model", *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
