"""Programs in workspaces: of an image, and of their tasks. What they reach, what they leave, and what is scored."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.external.inside import InsideProgram
from contrib.harbor.tests.playing import write_task
from contrib.workspaces.bug_fix.to_harbor import main as write_bug_fixes
from contrib.workspaces.machines.workspace import Workspace
from forge_env import EnvFactory, Episode, EpisodeLimits, Outcome, Task
from forge_env.core.errors import UserError
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode

_TASK = Task(prompt=({"role": "user", "content": "go"},), target="3", metadata={"shown": 1})


@pytest.fixture
def files(tmp_path: Path) -> str:
    folder = tmp_path / "agent"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "confined_program.py", folder)
    return str(folder)


@asynccontextmanager
async def _opened(*arguments: str, **options: Any) -> AsyncIterator[EnvFactory]:
    command = " ".join(["python3 /agent/confined_program.py", *arguments])
    async with make("external", command=command, **options) as factory:
        yield factory


async def _play(
    factory: EnvFactory, task: Task, *answers: str, answer: Callable[[list[Any]], str] | None = None, **limits: Any
) -> Episode:
    said = iter(answers)

    def say(messages: list[Any]) -> Any:
        return {"role": "assistant", "content": answer(messages) if answer else next(said, "nothing more")}

    merged = EpisodeLimits(**{"max_turns": 20, "step_seconds": 60.0, **factory.declared_limits(), **limits})
    return await run_episode(factory, ScriptedAgent(say), task, seed=5, episode_id="e", limits=merged)


async def test_the_gateway_is_all_that_a_program_reaches(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack tries another port of this machine, under several names of it, and the outside."""
    monkeypatch.setenv("MY_SECRET", "x")
    monkeypatch.setenv("NO_PROXY", "intern.example")
    with socket.create_server(("0.0.0.0", 0)) as server:
        port, own_address = server.getsockname()[1], _own_address()
        places = [f"127.0.0.1:{port}", f"localhost:{port}", f"{own_address}:{port}", "192.0.2.1:80", "example.org:443"]
        socket.create_connection((own_address, port), timeout=5).close()
        async with _opened("reaches", *places, image="host", files=files) as factory:
            episode = await _play(factory, _TASK, "yes", "thanks")
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    seen = json.loads(episode.turns[1].observation[0]["content"])
    assert len(seen["reached"]) == 5 and "" not in seen["reached"].values(), seen["reached"]
    assert (seen["own"], seen["wrong token"], seen["both"]) == ("", "401", "yes")
    assert seen["listening"] == [True], "the port of the gateway is the only one that is open"
    assert (seen["routes"], seen["secrets"], seen["not proxied"]) == ([], [], "127.0.0.1,localhost")
    assert seen["task"]["metadata"] == {"shown": 1} and "target" not in seen["task"]


def _own_address() -> str:
    """An address of this machine other than 127.0.0.1; packets to it do not leave the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


async def test_a_program_that_hangs_is_ended_and_its_output_is_kept(files: str) -> None:
    async with _opened("hangs", image="host", files=files) as factory:
        episode = await _play(factory, _TASK, "hi", step_seconds=2.0)
        assert factory.shared["setup"].rooms.workspaces._open == set()
    assert (episode.outcome, episode.ended_by) == (Outcome.TRUNCATED, "step_seconds"), episode.error
    assert (episode.info["program"]["stdout"], episode.info["program"]["stderr"]) == ("begun\n", "a complaint\n")


async def test_what_a_program_leaves_running_has_ended_before_its_result_is_read(
    files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    read = InsideProgram._read_result

    async def listed(self: InsideProgram, workspace: Workspace) -> None:
        running.extend((await workspace.exec("for one in /proc/[0-9]*; do echo $one; done")).stdout.split())
        await read(self, workspace)

    monkeypatch.setattr(InsideProgram, "_read_result", listed)
    async with _opened("leaves", image="host", files=files) as factory:
        episode = await _play(factory, _TASK, "hi")
        assert factory.shared["setup"].rooms.workspaces._open == set()
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    assert len(running) == 2, "the first process of the workspace, and the one that lists"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("python3 -c 'import sys; sys.exit(\"the disk is on fire\")'", "asked the model nothing.*the disk is on fire"),
        ("nothing-there", "the program cannot be started: nothing-there: not found"),
        ("python3 -c 'import os; os.kill(os.getpid(), 15)'", r"died of SIGTERM \(signal 15\)"),
    ],
)
async def test_the_end_of_a_program_is_told(command: str, reason: str) -> None:
    async with make("external", command=command, image="host") as factory:
        episode = await _play(factory, _TASK)
    assert episode.outcome is Outcome.ENV_FAULT and re.search(reason, episode.error), episode.error


_MKFIFO = 'python3 -c "import os, sys; os.mkfifo(sys.argv[1])"'


@pytest.mark.parametrize("trick", ["ln -s /etc/passwd", _MKFIFO, "mkdir"], ids=["link", "pipe", "folder"])
async def test_the_result_is_read_from_a_file_only(files: str, trick: str) -> None:
    agent = "python3 /agent/confined_program.py does"
    command = f"sh -c '{agent}; {trick} $FORGE_ENV_RESULT'"
    async with make("external", command=command, image="host", files=files) as factory:
        episode = await _play(factory, _TASK, "true")
    assert episode.outcome is Outcome.ENV_FAULT and "the result file of the program cannot be read" in episode.error


async def test_a_program_is_the_user_of_its_image(files: str) -> None:
    Path(files).chmod(0o700)
    command = "id -u; touch $TMPDIR/mine; cat $FORGE_ENV_TASK > /dev/null; stat -c %u /agent/confined_program.py"
    async with _opened("does", image="host", files=files) as factory:
        rooms = factory.shared["setup"].rooms
        object.__setattr__(rooms, "image", replace(rooms.image, user="65534:65534"))
        episode = await _play(factory, _TASK, command)
    assert episode.info["program"]["stdout"] == "65534\n65534\n\ndone\n", episode.error
    assert episode.info["program"]["stderr"] == ""


async def test_a_program_solves_a_task_of_harbor(files: str, tmp_path: Path) -> None:
    """The program is in the task's workspace, the verifier in a fresh one."""
    write_bug_fixes([str(tmp_path / "tasks"), "--count", "1", "--level", "0"])
    [solution] = (tmp_path / "tasks").glob("*/solution/solve.sh")
    async with _opened("does", tasks=f"harbor:{tmp_path / 'tasks'}", files=files) as factory:
        [task] = factory.tasks("all", count=1)
        solved = await _play(factory, task, solution.read_text())
        assert (solved.outcome, solved.reward) == (Outcome.SCORED, 1.0), solved.error
        assert (solved.info["verdict"]["verifier"], solved.info["verdict"]["forgeable"]) == ("separate", False)
        forging = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; pwd; cat $FORGE_ENV_TASK"
        forged = await _play(factory, task, forging)
        assert (forged.outcome, forged.reward) == (Outcome.SCORED, 0.0)
        assert forged.info["program"]["stdout"].startswith("/repo\n")
        assert '"metadata": {}' in forged.info["program"]["stdout"]
        assert forged.turns[0].observation[0]["content"].startswith("Line ")
    assert factory.episode_limits().max_turns == 100, "those of the tasks"


async def test_a_program_goes_through_the_steps_of_a_task(files: str, tmp_path: Path) -> None:
    task = tmp_path / "steps"
    toml = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    texts = {"task.toml": toml}
    reward = "/logs/verifier/reward.txt"
    for name in ("one", "two"):
        texts[f"steps/{name}/instruction.md"] = f"touch {name}"
        texts[f"steps/{name}/tests/test.sh"] = (
            f"#!/bin/sh\n[ -e /tmp/{name} ] && echo 1 > {reward} || echo 0 > {reward}\n"
        )
    for path, text in texts.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    async with _opened("does", tasks=f"harbor:{task}", files=files) as factory:
        [one] = factory.tasks("all", count=1)
        episode = await _play(factory, one, answer=lambda messages: messages[-1]["content"])
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 2), episode.error
    assert episode.info["verdict"]["steps"] == [{"reward": 1.0}, {"reward": 1.0}]


MCP_TASK = """[environment]
docker_image = "host"
workdir = "/tmp"
network_mode = "allowlist"
allowed_hosts = ["book.org"]
[[environment.mcp_servers]]
name = "book"
transport = "stdio"
command = "sh"
args = ["-c", 'echo "begun" >> begun']
[[environment.mcp_servers]]
name = "elsewhere"
transport = "http"
url = "https://book.org/mcp"
headers = { Authorization = "Bearer ${BOOK_TOKEN}" }
"""
STARTS_BOOK = """python3 - <<'END'
import json, os, subprocess, tomllib
from pathlib import Path
folder = Path(os.environ["FORGE_ENV_MCP"]).parent
usual = json.loads((folder / "mcp.json").read_text())["mcpServers"]
codex = tomllib.loads("of = " + (folder / "mcp.toml").read_text())["of"]
subprocess.run([codex["book"]["command"], *codex["book"]["args"]])
print(json.dumps([usual, codex, json.loads((folder / "mcp.opencode.json").read_text())["mcp"]]))
END
"""


async def test_a_program_starts_the_mcp_servers_of_its_task_itself(
    files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOOK_TOKEN", "red")
    verifier = "#!/bin/sh\n[ $(wc -l < /tmp/begun) = 1 ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n"
    folder = write_task(tmp_path / "task", MCP_TASK, **{"tests/test.sh": verifier})
    with pytest.raises(UserError, match="1 of 1 tasks need a network"):
        make("external", command="true", tasks=f"harbor:{folder}").tasks("all", count=1)
    consent = {"network": "declared"}
    async with _opened("does", tasks=f"harbor:{folder}", files=files, task_options=consent) as factory:
        [task] = factory.tasks("all", count=1)
        episode = await _play(factory, task, STARTS_BOOK)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    usual, codex, opencode = json.loads(episode.info["program"]["stdout"].splitlines()[0])
    book = {"command": "sh", "args": ["-c", 'echo "begun" >> begun']}
    url, headers = "https://book.org/mcp", {"Authorization": "Bearer red"}
    assert usual == {
        "book": {"type": "stdio", **book},
        "elsewhere": {"type": "http", "url": url, "httpUrl": url, "headers": headers},
    }
    assert codex == {"book": book, "elsewhere": {"url": url, "http_headers": headers}}
    assert opencode == {
        "book": {"type": "local", "command": ["sh", *book["args"]]},
        "elsewhere": {"type": "remote", "url": url, "headers": headers, "oauth": False},
    }


async def test_tasks_of_a_file_and_an_image_go_together(files: str, tmp_path: Path) -> None:
    row = {"instruction": "Write 7 into seven.txt.", "verifier": 'test "$(cat seven.txt)" = 7'}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row))
    options = {"tasks": "workspace", "data": str(tmp_path / "tasks.jsonl"), "image": "host", "files": files}
    async with _opened("does", **options) as factory:
        [task] = factory.tasks("all", count=1)
        commands = ("echo 7 > seven.txt", "echo 8 > seven.txt")
        good, bad = await asyncio.gather(*(_play(factory, task, command) for command in commands))
    assert (good.reward, bad.reward) == (1.0, 0.0), good.error
