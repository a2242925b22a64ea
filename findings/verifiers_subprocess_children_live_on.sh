#!/bin/sh
# Child processes of a program in the `subprocess` runtime of verifiers 0.4.
# Package: verifiers 0.4.0. Guess: what a rollout started ends with the rollout, as the comments say ("own process group, so we
# can reap the whole tree", "cleanup() reaps the whole tree").
# Seen: the group is signalled only while its first process runs. A server that a command starts with `&` lives on when `run`
# returns, and also after `teardown`, which has removed its folder; the same with `run_background`, when its first process has
# ended. Nothing is logged. A program that is still running itself is ended with its children. This script ends what it starts.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check verifiers==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
HOME="$folder" "$PYTHON" - <<'EOP'
import asyncio
import os
import signal
from importlib.metadata import version

from verifiers.v1.runtimes.subprocess import SubprocessConfig, SubprocessRuntime

assert version("verifiers") == "0.4.0"


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def logged(runtime, name):
    while not (text := (await runtime.read(name)).decode()).endswith("\n"):
        await asyncio.sleep(0.05)
    return int(text)


async def main():
    runtime = SubprocessRuntime(SubprocessConfig(), name="finding")
    await runtime.start()
    children = {}
    result = await runtime.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], {})
    children["run"] = int(result.stdout)
    await runtime.run_background(["sh", "-c", "sleep 60 & echo $!"], {}, "ended")
    children["run_background, ended"] = await logged(runtime, "ended")
    await runtime._background[-1].wait()
    await runtime.run_background(["sh", "-c", "sleep 60 & echo $!; wait"], {}, "running")
    children["run_background, running"] = await logged(runtime, "running")
    await runtime.teardown()
    await asyncio.sleep(1)
    seen = {name: lives(pid) for name, pid in children.items()}
    for pid in children.values():
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
    for name, alive in seen.items():
        print(f"child of {name}: {'lives on' if alive else 'ended'} after teardown")
    print(f"folder removed: {not os.path.exists(runtime.workdir)}")
    assert seen == {"run": True, "run_background, ended": True, "run_background, running": False}
    assert not os.path.exists(runtime.workdir)


asyncio.run(main())
EOP
