"""A program for tests: asks as its first argument says, with nothing but the standard library."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def send(path: str = "/chat/completions", *, key: str = "", **body: object) -> dict:
    """Make a request, and return the first choice of its answer."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + path,
        json.dumps({"model": os.environ["OPENAI_MODEL"], **body}).encode(),
        {"Authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]


def ask(*messages: object, **options: object) -> str:
    listed = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return send(**{"messages": listed, **options})["message"]["content"]  # type: ignore[arg-type]


def tries(*messages: object, **options: object) -> str:
    """Ask, and return what was said; of a refusal its status, code and message."""
    try:
        return ask(*messages, **options)  # type: ignore[arg-type]
    except urllib.error.HTTPError as refusal:
        error = json.load(refusal)["error"]
        return f"HTTP {refusal.code} {error['code']} {error['message']}"


LONG = "How many pens? " * 400


def talks(what: str) -> None:
    """Print to both streams, and end as the argument says."""
    print("some output")
    print("some trouble", file=sys.stderr)
    if what == "hangs before":
        time.sleep(1000)
    ask("hi")
    print("answered")
    if what == "hangs":
        time.sleep(1000)
    elif what == "full":
        ask(LONG)
    elif what == "fails":
        sys.exit(3)
    elif what == "asks":
        print(tries("and?"))
        time.sleep(0 if sys.argv[-1] == "once" else 1000)
    write(reward=1)


def write(**result: object) -> None:
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps(result))


def forks_and_hangs(file: str) -> None:
    """Ask once, and stay for ever with a child that is in a session of its own; nothing asks them politely."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000"], start_new_session=True)
    Path(file).write_text(f"{os.getpid()} {child.pid}")
    ask("hi")
    while True:
        time.sleep(1000)


def main(what: str, *rest: str) -> None:
    if what == "ask":
        print(ask(sys.stdin.read()))
    elif what == "reward":
        ask("hi")
        write(reward=float(rest[0]), answer="a")
        sys.exit(int(rest[1]) if len(rest) > 1 else 0)
    elif what == "echo":
        print(ask("hi"))
    elif what == "file":
        ask("hi")
        Path(os.environ["FORGE_ENV_RESULT"]).write_text(rest[0])
    elif what == "fail":
        print(ask("hi"))
        sys.exit("first line\nthe disk is on fire")
    elif what == "silent":
        sys.exit(rest[0] if rest else 0)
    elif what == "environment":
        seen = {
            "path": sys.path,
            "variables": dict(os.environ),
            "task": json.loads(Path(os.environ["FORGE_ENV_TASK"]).read_text()),
        }
        ask("hi")
        write(reward=1, answer=json.dumps(seen))
    elif what == "pid":
        print(ask(f"{os.getpid()}"))
    elif what == "child":
        subprocess.run([sys.executable, __file__, "pid"], check=False)
        write(reward=1)
    elif what == "hang":
        forks_and_hangs(rest[0])
    elif what == "talks":
        talks(rest[0])
    elif what == "refused":
        wanted = json.loads(rest[0])
        for options in wanted:
            print(tries("hi", **options), file=sys.stderr)
        write(reward=1)
    elif what == "too long":
        print(tries(LONG))
        if rest[0] == "shortens":
            print(tries("hi"))
        write(reward=0.5)
        sys.exit(1 if rest[0] == "fails" else 0)
    elif what == "flood":
        ask("hi")
        sys.stdout.write("x" * 10_000_000 + "\nend")


if __name__ == "__main__":
    main(*sys.argv[1:])
