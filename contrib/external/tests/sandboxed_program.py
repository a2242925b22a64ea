"""A program for tests, in a sandbox: does what its first argument says, with nothing but the standard library."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


def post(messages: list, key: str) -> dict:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": TOOLS}).encode(),
        {"Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def ask(*messages: object) -> dict:
    listed = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return post(listed, os.environ["OPENAI_API_KEY"])


def refusal(action) -> str:
    """The name of what an action raises, empty when it succeeds."""
    try:
        action()
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(error).__name__
    return ""


def works() -> None:
    """Two turns with a tool; the result is in the file."""
    first = ask(sys.stdin.read())
    [call] = first["tool_calls"]
    total = sum(json.loads(call["function"]["arguments"]).values())
    answer = {"role": "tool", "tool_call_id": call["id"], "content": str(total)}
    second = ask("What is it?", first, answer)
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps({"reward": 0.5, "answer": second["content"]}))


def looks(port: str, *files: str) -> None:
    """What can be seen and done from here; the same outside shows that it is the sandbox that keeps it in."""
    own = Path(os.environ["TMPDIR"], "own")
    own.write_text("written")
    seen = {
        "files": [refusal(lambda path=path: Path(path).read_bytes()) for path in files],
        "connect": refusal(lambda: socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()),
        "wrong_token": refusal(lambda: post([{"role": "user", "content": "hi"}], "x" * 43)),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "variables": dict(os.environ),
        "init": refusal(lambda: os.listdir("/proc/1/root")),
        "writes": [
            refusal(lambda path=path: Path(path, "x").write_text("")) for path in (".", "/", "/usr", sys.prefix)
        ],
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
        "terminal": os.ttyname(os.openpty()[1]),
        "own": own.read_text(),
        "ids": [os.getuid(), os.getpid()],
    }
    ask(json.dumps(seen))
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps({"reward": 1}))


def hangs(seconds: str) -> None:
    """Stay for ever with a child in a session of its own, which nothing asks politely."""
    subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep {seconds}"], start_new_session=True)
    ask("hi")
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    {"works": works, "looks": looks, "hangs": hangs}[sys.argv[1]](*sys.argv[2:])
