"""An endpoint that never works is seen in what an evaluation says: its episodes do not go without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException

from forge_env.cli.main import main
from tests.envs.serving import serve

AGENT = """
import json

def play(messages):
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": json.loads(messages[-1]["content"]).get("capital", "")
                if messages[-1]["content"].startswith("{") else ""}
    name, country = messages[-1]["content"].split()
    call = {"type": "function", "function": {"name": name, "arguments": {"country": country}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
"""


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    app = FastAPI()

    @app.get("/good/{country}", operation_id="good")
    async def good(country: str) -> dict[str, str]:
        return {"capital": "Paris"}

    @app.get("/broken/{country}", operation_id="broken")
    async def broken(country: str) -> None:
        raise HTTPException(501, "never")

    @app.get("/locked/{country}", operation_id="locked")
    async def locked(country: str) -> None:
        raise HTTPException(401, "who are you?")

    with serve(app) as url:
        yield url


def evaluate(service: str, asked: list[str], capsys: pytest.CaptureFixture[str], *more: str) -> tuple[Any, str]:
    Path("agent.py").write_text(AGENT)
    rows = [{"prompt": f"{name} Land{i}", "answer": "Paris"} for i, name in enumerate(asked)]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--env", "tool_api", "--tools", f"openapi:{service}/openapi.json", "--option", "data=tasks.jsonl"]
    where = ["--agent", "scripted:agent.py:play", "--split", "all", "--tasks", str(len(asked)), "-n", "1"]
    main(["eval", *options, *where, "--out", "out", *more])
    captured = capsys.readouterr()
    return (json.loads(captured.out) if "--json" in more else captured.out), captured.err


def test_an_endpoint_that_always_fails_is_counted_and_warned_of(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["good", "good", "broken", "broken", "locked"]
    result, _ = evaluate(service, asked, capsys, "--json")
    assert (result["episodes"], result["successes"], result["faults"]) == (3, 2, {"ServiceError": 2})
    assert result["first_errors"]["ServiceError"].startswith("ServiceError: tool broken: GET ")
    shown = {name: (tool["calls"], tool["errors"], tool["faults"]) for name, tool in result["tools"].items()}
    assert shown == {"good": (2, {}, 0), "broken": (0, {}, 2), "locked": (1, {"http_401": 1}, 0)}
    assert result["warnings"] == [
        "the tool broken never worked in 2 calls: 2 episodes ended by a fault of it and are not in the score",
        "the tool locked never worked in 1 calls: http_401 1",
    ]
    text, notes = evaluate(service, asked, capsys)
    assert "note: the tool broken never worked in 2 calls" in notes and "faults" in text
