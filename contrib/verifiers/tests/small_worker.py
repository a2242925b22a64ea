"""A worker that speaks the protocol of `contrib/verifiers/worker.py`, without verifiers: a text game of three tries.

What a task does beside is the "behave" of its data: "fail", "die", "hang", "stop" after two tries, "mute".
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httpx


def listed() -> dict[str, Any]:
    tasks = [
        {"key": f"{i:064x}", "data": {"idx": i, "prompt": f"Say {i}.", "answer": str(i), "system_prompt": "Be brief."}}
        for i in range(60)
    ]
    return {"version": "0.0", "harness": "small", "max_turns": 3, "tasks": tasks}


async def play(request: dict[str, Any]) -> dict[str, Any]:
    data = request["data"]
    behave, tries = data.get("behave", ""), 2 if data.get("behave") == "stop" else 3
    messages = [{"role": "system", "content": data["system_prompt"]}, {"role": "user", "content": data["prompt"]}]
    if behave == "mute":
        return {"failed": "TaskError: nothing to do"}
    headers = {"Authorization": f"Bearer {request['token']}"}
    async with httpx.AsyncClient(
        base_url=request["base_url"], headers=headers, timeout=None, trust_env=False, verify=False
    ) as client:
        number, said = 0, ""
        for number in range(tries):  # noqa: B007 (its last value is read)
            answer = await client.post("/chat/completions", json={"model": "policy", "messages": messages})
            if answer.status_code != 200:
                return {"failed": f"ProviderError: {answer.text[:200]}"}
            said = answer.json()["choices"][0]["message"]["content"]
            if behave == "die":
                os._exit(3)
            if behave == "fail":
                return {"failed": "TaskError: the scoring broke"}
            if behave == "hang":
                await asyncio.Event().wait()
            if said == data["answer"]:
                break
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "No."}]
    right = said == data["answer"]
    stopped = behave == "stop" and not right
    return {
        "reward": 0.75 * right + 0.25 * (right and number == 0),
        "rewards": {"right": 0.75 * right, "quick": 0.25 * (right and number == 0)},
        "metrics": {"tries": number + 1.0},
        "stop_condition": "max_turns" if stopped else "agent_completed",
        "truncated": stopped,
        "info": {},
    }


async def serve(settings: dict[str, Any]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: dict[int, asyncio.Task[None]] = {}

    async def answer(request: dict[str, Any]) -> None:
        try:
            result = await play(request)
        except asyncio.CancelledError:
            result = {"failed": "cancelled"}
        print(json.dumps({"id": request["id"], **result}), flush=True)

    print(json.dumps({"ready": {"folder": settings["folder"]}}), flush=True)
    while line := await reader.readline():
        request = json.loads(line)
        if "cancel" in request:
            running[request["cancel"]].cancel()
        else:
            running[request["id"]] = asyncio.create_task(answer(request))


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    if settings["id"] == "nope":
        print(json.dumps({"refused": "verifiers cannot load 'nope': there is no such module"}))
    elif settings["id"] == "broken":
        print("the disk is full", file=sys.stderr)
        sys.exit(1)
    elif sys.argv[1] == "list":
        print(json.dumps(listed()))
    else:
        asyncio.run(serve(settings))
