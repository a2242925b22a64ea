"""A program for tests, in a sandbox or a workspace: does what its first argument says, with the standard library."""

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


def post(url: str, body: dict, headers: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def chat(*messages: object, key: str = "", **options: object) -> dict:
    """The message that answers, by OpenAI's API."""
    listed = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    body = {"model": os.environ["OPENAI_MODEL"], "messages": listed, **options}
    bearer = {"Authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}"}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, bearer)["choices"][0]["message"]


def ask_anthropic(text: str) -> str:
    """By Anthropic's API."""
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    message = {"role": "user", "content": text}
    body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 64, "messages": [message]}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    return post(url, body, headers)["content"][0]["text"]


def refusal(action) -> str:
    """The name of what an action raises, empty when it succeeds."""
    try:
        action()
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(error).__name__
    return ""


def connect(place: str) -> None:
    """Connect to "host:port"."""
    host, _, port = place.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5).close()


def tell(seen: dict) -> None:
    """Let the model know, and end with a reward."""
    chat(json.dumps(seen))
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps({"answer": "looked", "reward": 1.0}))


def works() -> None:
    """Two turns with a tool; the result is in the file."""
    first = chat(sys.stdin.read(), tools=TOOLS)
    [call] = first["tool_calls"]
    total = sum(json.loads(call["function"]["arguments"]).values())
    answer = {"role": "tool", "tool_call_id": call["id"], "content": str(total)}
    second = chat("What is it?", first, answer, tools=TOOLS)
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps({"reward": 0.5, "answer": second["content"]}))


def does() -> None:
    """Ask what to do, and do it."""
    command = chat(sys.stdin.read())["content"]
    print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout)
    print("done")


def looks(port: str, *files: str) -> None:
    """What can be seen and done from here; the same outside shows that it is the sandbox that keeps it in."""
    own = Path(os.environ["TMPDIR"], "own")
    own.write_text("written")
    tell(
        {
            "files": [refusal(lambda path=path: Path(path).read_bytes()) for path in files],
            "connect": refusal(lambda: connect(f"127.0.0.1:{port}")),
            "wrong_token": refusal(lambda: chat("hi", key="x" * 43)),
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
    )


def reaches(*places: str) -> None:
    """What can be reached from a workspace, of "host:port" each, and what else can be seen."""
    own = int(os.environ["OPENAI_BASE_URL"].rpartition(":")[2].partition("/")[0])
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    tell(
        {
            "reached": {place: refusal(lambda place=place: connect(place)) for place in places},
            "own": refusal(lambda: connect(f"127.0.0.1:{own}")),
            "wrong token": refusal(lambda: chat("hi", key="x" * 43)),
            "listening": [int(row[1].rpartition(":")[2], 16) == own for row in rows if row[3] == "0A"],
            "routes": Path("/proc/net/route").read_text().splitlines()[1:],
            "not proxied": os.environ["NO_PROXY"],
            "secrets": [name for name in os.environ if "SECRET" in name],
            "task": json.loads(Path(os.environ["FORGE_ENV_TASK"]).read_text()),
            "both": ask_anthropic("and by the other API?"),
        }
    )


def hangs(seconds: str = "1000") -> None:
    """Stay for ever with a child in a session of its own, which nothing asks politely."""
    subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep {seconds}"], start_new_session=True)
    print("begun", flush=True)
    print("a complaint", file=sys.stderr, flush=True)
    chat("hi")
    while True:
        time.sleep(1000)


def leaves() -> None:
    """End, and leave a process that changes the result again and again."""
    result = os.environ["FORGE_ENV_RESULT"]
    loop = f"while :; do echo '{{\"reward\": 1}}' > {result}.new; mv {result}.new {result}; done"
    subprocess.Popen(["sh", "-c", loop], start_new_session=True)
    while not os.path.exists(result):
        time.sleep(0.01)
    chat("hi")


if __name__ == "__main__":
    actions = (works, does, looks, reaches, hangs, leaves)
    {action.__name__: action for action in actions}[sys.argv[1]](*sys.argv[2:])
