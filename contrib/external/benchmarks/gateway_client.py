"""The client of `contrib.external.benchmarks.gateway`: sends the bodies of a file, and needs nothing but Python's own
library.

    python -S -E gateway_client.py FILE                          as the program of an episode
    python -S -E gateway_client.py FILE URL TOKEN COUNT THREADS  takes COUNT sessions; prints what it measured

FILE has the path and the number of requests of a conversation on its first line, and a body on each further one.
"""

import http.client
import json
import os
import sys
import threading
import time


def read(file: str) -> tuple[str, list[list[bytes]]]:
    with open(file, "rb") as lines:
        header = json.loads(next(lines))
        bodies = [line.rstrip(b"\n") for line in lines]
    size = header["requests"]
    return header["path"], [bodies[i : i + size] for i in range(0, len(bodies), size)]


def send(connection: http.client.HTTPConnection, path: str, key: str, body: bytes) -> bytes:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    data = response.read()
    if response.status not in (200, 201):
        raise SystemExit(f"HTTP {response.status}: {data[:500]!r}")
    return data


def connect(url: str) -> http.client.HTTPConnection:
    host, _, port = url.removeprefix("http://").partition(":")
    return http.client.HTTPConnection(host, int(port), timeout=120)


def play(url: str, key: str, path: str, bodies: list[bytes], seconds: list[float]) -> None:
    connection = connect(url)
    for body in bodies:
        began = time.perf_counter()
        data = send(connection, path, key, body)
        seconds.append(time.perf_counter() - began)
        if b"tool_1" not in data:
            raise SystemExit(f"no call in {data[-500:]!r}")


def take(url: str, token: str, path: str, conversations: list[list[bytes]], seconds: list[float]) -> None:
    connection = connect(url)
    while conversations:
        bodies = conversations.pop()
        session = json.loads(send(connection, "/sessions", token, b"{}"))
        play(url, session["api_key"], path, bodies, seconds)
        send(connection, f"/sessions/{session['id']}/finish", token, b'{"reward": 1.0}')


def main() -> None:
    path, conversations = read(sys.argv[1])
    if len(sys.argv) == 2:
        number = int(os.environ["FORGE_ENV_SEED"])
        url = os.environ["ANTHROPIC_BASE_URL"]
        play(url, os.environ["OPENAI_API_KEY"], path, conversations[number], [])
        with open(os.environ["FORGE_ENV_RESULT"], "w") as file:
            file.write('{"reward": 1.0}')
        return
    url, token, count, threads = sys.argv[2:]
    conversations = conversations[: int(count)]
    sizes = [len(body) for bodies in conversations for body in bodies]
    seconds: list[float] = []
    workers = [
        threading.Thread(target=take, args=(url, token, path, conversations, seconds)) for _ in range(int(threads))
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wall = time.perf_counter() - began
    print(json.dumps({"wall_seconds": wall, "seconds": seconds, "bytes": sizes}), flush=True)


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main()
