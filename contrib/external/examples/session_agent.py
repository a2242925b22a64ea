"""An agent on another machine: it takes one session after another from a server of forge_env, and finishes each.

    export FORGE_ENV_TOKEN=$(openssl rand -hex 32)
    forge-env serve --agent vllm:Qwen/Qwen3-0.6B --option tasks=math --out outputs/sessions --port 8000
    python contrib/external/examples/session_agent.py http://127.0.0.1:8000 --workers 4 --sessions 20

The same agent trains the model, if a run hands out the sessions:

    python -m trainers.grpo --env sessions --env.options.listen 127.0.0.1:8000 --env.options.tasks math \
        --model Qwen/Qwen3-0.6B

It needs the `openai` package, and nothing of forge_env.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from openai import OpenAI, OpenAIError

GONE_SECONDS = 60.0
"""How long a server may not be reached, as before it has started, until it counts as gone."""


def play(session: dict) -> str:
    """The agent: any program that asks the model at `base_url` could be here."""
    client = OpenAI(base_url=session["base_url"], api_key=session["api_key"])
    system = {"role": "system", "content": "Answer with a number."}
    messages = [system, *session["task"]["messages"]]
    reply = client.chat.completions.create(model=session["model"], messages=messages)
    return (reply.choices[0].message.content or "").strip()


def take(server: httpx.Client, gone_seconds: float) -> dict | None:
    """The next session; None when the server is gone."""
    reached = time.monotonic()
    while time.monotonic() < reached + gone_seconds:
        try:
            response = server.post("/sessions", json={"wait_seconds": 30})
        except httpx.TransportError:
            time.sleep(1.0)
            continue
        if response.status_code == 503:  # none is on offer: the policy is busy with others, or with a training step
            reached = time.monotonic()
            time.sleep(float(response.headers["retry-after"]))
            continue
        if response.is_error:
            sys.exit(f"{response.status_code}: {response.text}")
        return response.json()
    return None


def work(url: str, sessions: int, gone_seconds: float) -> int:
    """Play sessions one after another; returns how many were scored."""
    scored = 0
    headers = {"Authorization": f"Bearer {os.environ['FORGE_ENV_TOKEN']}"}
    with httpx.Client(base_url=url, headers=headers, timeout=660) as server:
        for _ in range(sessions):
            session = take(server, gone_seconds)
            if session is None:
                break
            try:
                body = {"answer": play(session)}
            except OpenAIError as error:  # say so, so that nobody waits for this session
                body = {"error": str(error)}
            try:
                ended = server.post(f"/sessions/{session['id']}/finish", json=body)
            except httpx.TransportError:
                continue
            scored += ended.is_success and ended.json().get("reward") is not None
    return scored


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--workers", type=int, default=4, help="sessions at once")
    parser.add_argument(
        "--sessions", type=int, default=10**9, help="sessions of each worker; else until the server ends"
    )
    parser.add_argument("--gone-seconds", type=float, default=GONE_SECONDS, help="silence after which a server is gone")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.workers) as pool:
        jobs = [pool.submit(work, options.url, options.sessions, options.gone_seconds) for _ in range(options.workers)]
        print(sum(job.result() for job in jobs), "sessions were scored")


if __name__ == "__main__":
    main()
