#!/bin/sh
# An OpenEnv text game (one field, `message: str`, as in its TextArena and chat environments) played through verifiers' OpenEnv taskset.
# Packages: verifiers 0.4.0 with its extra for openenv, which installs openenv 0.4.1. Guess: for an action of one text field the
# model's reply is that text, as the docstring says ("the raw field value").
# Seen: a reply that happens to be JSON is parsed first. "[4]", the move of Tic-Tac-Toe in TextArena's form, becomes a list, 42
# a number, "true" a truth value; {"a": 1} is taken for the whole action, and a text in quotes loses them. The server refuses
# all but the last, the client raises, and the episode is lost. "[crane]" and "[0 1]" are no JSON and arrive. So the same
# game works for one kind of move and not for another.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check verifiers==0.4.0 openenv==0.4.1
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import asyncio
import socket
import threading
from importlib.metadata import version

import uvicorn
from openenv import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from verifiers.v1.tasksets.openenv.taskset import parse_action

assert version("verifiers") == "0.4.0" and version("openenv") == "0.4.1"


class Move(Action):
    message: str


class Game(Environment):
    def reset(self, **_):
        return Observation()

    def step(self, action, **_):
        return Observation(metadata={"read": action.message}, reward=1.0)

    @property
    def state(self):
        return State()


async def play(url):
    assert Move.model_json_schema()["required"] == ["message"]
    for reply, arrives in (
        *(("[crane]", True), ("[0 1]", True), ("0042", True), ("[4]", False), ("[1, 2]", False), ("42", False)),
        *(("true", False), ('{"a": 1}', False), ('"up"', True)),
    ):
        action = parse_action(reply, Move.model_json_schema())
        async with GenericEnvClient(base_url=url) as client:
            await client.reset()
            try:
                said = f"reward {(await client.step(action)).reward}"
            except Exception as error:
                said = type(error).__name__
        print(f"reply {reply}: action {action}, {said}")
        assert (said == "reward 1.0") is arrives and (action == {"message": reply}) is (arrives and reply != '"up"')


with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(create_fastapi_app(Game, Move, Observation), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        asyncio.run(play(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    finally:
        server.should_exit = True
        thread.join()
EOP
