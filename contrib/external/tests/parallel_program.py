"""A program for tests whose requests come at once: threads and the standard library."""

import json
import os
import sys
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from external_program import send


def ask(messages: list, **options: object) -> list:
    """Return the messages with the answer."""
    return [*messages, send(messages=messages, **options)["message"]]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def helper(name: str) -> list:
    """A helper agent: asks twice in one conversation."""
    first = ask([{"role": "system", "content": "You help."}, user(f"task {name}")])
    return ask([*first, user(f"more {name}")])


def tries(name: str) -> str:
    try:
        return ask([user(f"task {name}")])[-1]["content"]
    except urllib.error.HTTPError as refusal:
        return f"HTTP {refusal.code} {json.load(refusal)['error']['code']}"


def main(what: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        if what == "helpers":
            reports = [done[-1]["content"] for done in pool.map(helper, "abc")]
            ask([user("the reports: " + ", ".join(sorted(reports)))])
        elif what == "forks":
            start = ask([user("start")])
            list(pool.map(ask, ([*start, user(f"way {name}")] for name in "ab")))
        elif what == "samples":
            list(pool.map(ask, [[user("the same")]] * 3))
        elif what == "completions":
            list(pool.map(lambda prompt: send("/completions", prompt=prompt, max_tokens=4), ["one pen", "two pens"]))
        elif what == "tries":
            print(sorted(pool.map(tries, "abc")))
        elif what == "leaves":
            threading.Thread(target=tries, args=("left alone",), daemon=True).start()
            ask([user("task answered")])
            Path(os.environ["FORGE_ENV_RESULT"]).write_text('{"reward": 1.0}')
            os._exit(0)
    Path(os.environ["FORGE_ENV_RESULT"]).write_text('{"reward": 1.0, "answer": "done"}')


if __name__ == "__main__":
    main(sys.argv[1])
