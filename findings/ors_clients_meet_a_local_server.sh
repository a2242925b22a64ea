#!/bin/sh
# The two public clients of the Open Reward Standard, used against a server on this machine.
# Packages: openreward 0.1.167, ors-sdk 0.1.0. Guess: a client given a base URL sends every request to that host, and an
# environment that it returned works as long as the caller holds it.
# Seen: 1. openreward puts "sessions." before the host of `base_url`, an IP address too: sessions of http://127.0.0.1:8080 go to
# http://sessions.127.0.0.1:8080, which no resolver knows. `localhost` becomes sessions.localhost. Only the variable
# OPENREWARD_SESSION_URL mends it; base_url alone cannot.
# 2. ors-sdk's blocking environment shares the client's event loop, and does not hold the client: after
# `environment = ORS(url).environment(name)` the client is collected, its loop is closed, and each call of the environment
# is "Event loop is closed". It counts its tasks as long as a variable holds the client.
# PYTHON_OPENREWARD and PYTHON_ORS may name interpreters that have the packages; else they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
install() {
    python3 -m venv "$folder/$1" >/dev/null
    "$folder/$1/bin/pip" install -q "$2"
}
if [ -z "${PYTHON_OPENREWARD:-}" ]; then
    install openreward openreward==0.1.167
    PYTHON_OPENREWARD="$folder/openreward/bin/python"
fi
if [ -z "${PYTHON_ORS:-}" ]; then
    install ors ors-sdk==0.1.0
    PYTHON_ORS="$folder/ors/bin/python"
fi
env -u OPENREWARD_SESSION_URL "$PYTHON_OPENREWARD" - <<'EOP'
from importlib.metadata import version
from urllib.parse import urlsplit

from openreward import OpenReward

assert version("openreward") == "0.1.167", version("openreward")
for base in ("http://127.0.0.1:8080", "http://localhost:8080"):
    client = OpenReward(api_key="none", base_url=base)
    print(f"base_url {base}: sessions at {client.session_base_url}")
    assert urlsplit(client.session_base_url).hostname == "sessions." + urlsplit(base).hostname
EOP
"$PYTHON_ORS" - <<'EOP'
import gc
import socket
import threading
import time
from importlib.metadata import version

import uvicorn
from ors import Environment, Server, Split, TextBlock, ToolOutput, tool
from ors.client import ORS
from pydantic import BaseModel

assert version("ors-sdk") == "0.1.0", version("ors-sdk")


class Number(BaseModel):
    value: int


class Sums(Environment):
    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str):
        return [{"number": number} for number in range(3)]

    def get_prompt(self):
        return [TextBlock(text="What is 1 + 7?")]

    @tool
    def submit(self, params: Number) -> ToolOutput:
        """Submit the answer."""
        return ToolOutput(blocks=[TextBlock(text="Right.")], reward=1.0, finished=True)


listener = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(Server([Sums]).app, log_level="error"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.05)
client = ORS(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
environment = client.environment("sums")
print("with its client:", environment.num_tasks("train"), "tasks")
del client
gc.collect()
try:
    print("without it:", environment.num_tasks("train"), "tasks")
    raise SystemExit("the environment works without its client")
except RuntimeError as error:
    print("without it:", error)
    assert "Event loop is closed" in str(error)
finally:
    server.should_exit = True
    thread.join(20)
EOP
