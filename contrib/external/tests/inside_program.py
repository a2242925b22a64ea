"""An agent for tests that runs in a workspace: nothing but the standard library."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def post(url: str, body: dict, headers: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def ask(text: str) -> str:
    """By OpenAI's API."""
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
    bearer = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    return post(url, body, bearer)["choices"][0]["message"]["content"]


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


def does() -> None:
    """Ask what to do, and do it."""
    command = ask(sys.stdin.read())
    print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout)
    print("done")


def looks(*places: str) -> None:
    """What can be reached from here, of "host:port" each, and what else can be seen."""
    own = int(os.environ["OPENAI_BASE_URL"].rpartition(":")[2].partition("/")[0])
    bad = {"Authorization": "Bearer " + "x" * 43}

    def connect(place: str) -> None:
        host, _, port = place.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()

    def listening() -> list:
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"]

    seen = {
        "reached": {place: refusal(lambda place=place: connect(place)) for place in places},
        "own": refusal(lambda: connect(f"127.0.0.1:{own}")),
        "wrong token": refusal(lambda: post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {}, bad)),
        "listening": [port == own for port in listening()],
        "routes": Path("/proc/net/route").read_text().splitlines()[1:],
        "not proxied": os.environ["NO_PROXY"],
        "secrets": [name for name in os.environ if "SECRET" in name],
        "task": json.loads(Path(os.environ["FORGE_ENV_TASK"]).read_text()),
        "both": ask_anthropic("and by the other API?"),
    }
    ask(json.dumps(seen))
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps({"answer": "looked", "reward": 1.0}))


def hangs() -> None:
    """Stay for ever with a child in a session of its own."""
    subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True)
    print("begun", flush=True)
    print("a complaint", file=sys.stderr, flush=True)
    ask("hi")
    while True:
        time.sleep(1000)


def leaves() -> None:
    """End, and leave a process that changes the result again and again."""
    result = os.environ["FORGE_ENV_RESULT"]
    loop = f"while :; do echo '{{\"reward\": 1}}' > {result}.new; mv {result}.new {result}; done"
    subprocess.Popen(["sh", "-c", loop], start_new_session=True)
    while not os.path.exists(result):
        time.sleep(0.01)
    ask("hi")


if __name__ == "__main__":
    {"does": does, "looks": looks, "hangs": hangs, "leaves": leaves}[sys.argv[1]](*sys.argv[2:])
