"""external with programs in a sandbox: what they can do, what they see, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.external.confined import check_programs
from contrib.external.tests.external_playing import calls, says
from forge_env.core.episode import Episode
from forge_env.core.errors import SandboxUnavailable, UserError
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.waiting import wait_until

try:
    asyncio.run(check_programs())
except SandboxUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

PROGRAM = Path(__file__).with_name("confined_program.py")
TASK = Task(prompt=({"role": "user", "content": "What is it?"},))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for the program, which its user may read; pytest's own is private."""
    folder = tmp_path / "program"
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    folder.chmod(0o755)
    return folder


async def play(
    home: Path, *arguments: str, agent: Agent | None = None, seconds: float = 60.0, **options: Any
) -> Episode:
    program = arguments if arguments[0] == "-c" else (PROGRAM.name, *arguments)
    command = shlex.join([sys.executable, "-S", *program])
    options = {"sandbox": "namespaces", **options}
    echo = ScriptedAgent(lambda messages: {"role": "assistant", "content": "hi"})
    limits = EpisodeLimits(max_turns=5, episode_seconds=seconds)
    async with make("external", command=command, cwd=str(home), **options) as factory:
        return await run_episode(factory, agent or echo, TASK, seed=5, episode_id="e", limits=limits)


async def test_the_record_is_the_one_of_a_program_outside(home: Path, tiny_model: Path) -> None:
    recorded = []
    for sandbox in ("", "namespaces"):
        agent = says(tiny_model, calls("add", a=1, b=2), "3")
        episode = await play(home, "works", agent=agent, sandbox=sandbox)
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.5), episode.error
        [row] = episode.rows
        ids = [turn.token_ids.tolist() for turn in episode.turns]
        recorded.append((row.token_ids.tolist(), ids, episode.turns[1].observation))
    assert recorded[0] == recorded[1]
    assert recorded[0][2][0]["content"] == "3", "the answer of the tool"


@pytest.fixture
def served_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


async def test_a_program_sees_its_own_and_reaches_the_gateway_only(
    home: Path, tmp_path: Path, served_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "the user's own")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("secret")
    with tempfile.NamedTemporaryFile(dir=Path.home()) as at_home:
        files = [str(elsewhere), at_home.name, "/etc/hostname", str(PROGRAM), str(home / PROGRAM.name)]
        seen = {}
        for sandbox in ("", "namespaces"):
            episode = await play(home, "looks", served_port, *files, sandbox=sandbox)
            assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
            seen[sandbox] = json.loads(episode.turns[0].observation[0]["content"])
    outside, inside = seen[""], seen["namespaces"]

    assert outside["files"] == [""] * 5 and outside["connect"] == "", "all of it is there, and can be reached"
    assert outside["variables"]["MY_SECRET"] and len(outside["processes"]) > 2

    assert inside["files"] == ["FileNotFoundError"] * 4 + [""]
    assert inside["connect"] == "ConnectionRefusedError"
    assert inside["wrong_token"] == outside["wrong_token"] == "401"
    assert inside["processes"] == [1, 2]
    assert inside["init"] == "PermissionError"
    assert all(inside["writes"]) and inside["own"] == "written"
    assert inside["descriptors"] == [0, 1, 2]
    assert inside["terminal"] == "/dev/pts/0", "the first one of its own, whatever terminals there are outside"
    assert inside["ids"][0] != 0
    given = {name for name in inside["variables"] if not name.startswith(("OPENAI_", "ANTHROPIC_", "FORGE_ENV_"))}
    assert given <= {"PATH", "LANG", "HOME", "TMPDIR", "PYTHONUNBUFFERED", "LC_CTYPE"}  # the last is Python's own doing
    assert inside["variables"]["ANTHROPIC_BASE_URL"] == inside["variables"]["OPENAI_BASE_URL"].removesuffix("/v1")
    assert inside["variables"]["HOME"] == inside["variables"]["TMPDIR"]


def processes(marker: str) -> list[int]:
    """Those that have a text in their command line."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                pids.append(int(name))
        except OSError:
            continue  # it has ended meanwhile
    return pids


def new_marker() -> str:
    return f"1000000.{secrets.randbits(60)}"


async def test_nothing_is_left_when_an_episode_is_cut_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, pids = new_marker(), []

    def answer(messages: Any) -> Any:
        pids.extend(processes(marker))
        return {"role": "assistant", "content": "hi"}

    monkeypatch.setattr(tempfile, "tempdir", str(home.parent))
    episode = await play(home, "hangs", marker, agent=ScriptedAgent(answer), seconds=3.0)
    assert (episode.outcome, len(episode.turns)) == (Outcome.TRUNCATED, 1), episode.error
    assert len(pids) >= 5, "guard, launcher, init, program, child"
    assert processes(marker) == []
    assert [path.name for path in home.parent.iterdir()] == ["program"]


def test_a_program_ends_with_the_process_that_started_it(home: Path) -> None:
    """SIGKILL, of which nothing is told to anybody."""
    code = """
import asyncio, os
from pathlib import Path
from contrib.external.tests.test_external_sandbox import play
asyncio.run(play(Path(os.environ["HOME_OF_PROGRAM"]), "hangs", os.environ["MARKER"]))
"""
    marker, temp = new_marker(), home.parent / "temp"
    temp.mkdir()
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temp), "MARKER": marker}
    owner = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environ, "HOME_OF_PROGRAM": str(home)})
    try:
        wait_until(lambda: len(processes(marker)) >= 6)  # those, and the sleep of the child
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: not processes(marker))
    wait_until(lambda: not list(temp.iterdir()))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('the disk is on fire')", "ended with exit code 1.*the disk is on fire"),
        ("import os; os.kill(0, 9)", r"died of SIGKILL \(signal 9\)"),
    ],
)
async def test_the_end_of_a_program_is_told_as_outside(home: Path, code: str, reason: str) -> None:
    episode = await play(home, "-c", code)
    assert episode.outcome is Outcome.ENV_FAULT and re.search(reason, episode.error), episode.error


@pytest.mark.parametrize("trick", ["os.symlink('/etc/hostname', {})", "os.mkfifo({})", "os.mkdir({})"])
async def test_the_result_is_read_from_a_file_only(home: Path, trick: str) -> None:
    """A link would be followed by us, who see more than the program; a pipe would keep us waiting."""
    code = "import os, sys; sys.path[:0] = ['.']; import confined_program as p; p.chat('hi'); "
    episode = await play(home, "-c", code + trick.format("os.environ['FORGE_ENV_RESULT']"))
    assert episode.outcome is Outcome.ENV_FAULT and "the result file of the program" in episode.error


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sandbox": "namespace"}, "sandbox is 'namespace'.*Did you mean namespaces"),
        ({"sandbox": "namespaces", "host": "127.0.0.2"}, "reaches only 127.0.0.1"),
        ({"sandbox": "namespaces", "cwd": "/"}, "would see all of /"),
        ({"sandbox": "namespaces", "cwd": str(Path.home())}, "would see all of"),
        ({"sandbox": "namespaces", "cwd": tempfile.gettempdir()}, "would see all of"),
    ],
)
async def test_a_mistake_is_one_sentence(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        async with make("external", command="true", **options):
            pass


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_kernel_that_refuses_is_said_before_anything_starts() -> None:
    """Root without CAP_SYS_ADMIN, as in a default container."""
    code = """
import asyncio
from forge_env.rollout.factory import make
async def main():
    async with make("external", command="true", sandbox="namespaces"):
        print("opened")
asyncio.run(main())
"""
    weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(weak, env=environ, capture_output=True, text=True, timeout=60)
    last = ended.stderr.strip().rpartition("\n")[2]
    assert ended.returncode == 1 and not ended.stdout
    assert "SandboxUnavailable: namespace sandbox: the kernel refused" in last and "--cap-add SYS_ADMIN" in last
