"""The environment `workspace`: rows, verdicts in a fresh workspace, what is collected, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import forge_env
from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.env.cheats import workspace_cheats
from contrib.workspaces.env.obstacles import obstacle_in
from contrib.workspaces.env.prepared_env import Bases
from contrib.workspaces.env.rows import read_row
from contrib.workspaces.images.dockerfile import BuiltImage
from contrib.workspaces.tests.made_images import make_small_image
from envs.messages import call, say
from forge_env import EnvFactory, Episode, Outcome
from forge_env.cli.main import main
from forge_env.core.errors import EnvError, UserError
from forge_env.core.types import Message
from forge_env.data.rows import BadRow
from tests.helpers import scripts
from tests.helpers.scripts import tool_results

_ROW = {
    "instruction": "Write the sum of the numbers in numbers.txt into sum.txt.",
    "files": {"numbers.txt": "3\n4\n", "notes/old.txt": "old"},
    "setup": "date +%s%N > prepared",
    "verifier": 'sh check.sh && test "$(cat sum.txt)" = 7',
    "verifier_files": {"check.sh": "test ! -e /elsewhere && test ! -e notes/old.txt\n"},
    "solution": "rm notes/old.txt; echo 7 > sum.txt",
    "image": "host",
    "kind": "sum",
}


@asynccontextmanager
async def _opened(folder: Path, *rows: Mapping[str, Any], **options: Any) -> AsyncIterator[EnvFactory]:
    data = folder / "tasks.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    async with forge_env.make("workspace", data=str(data), **options) as factory:
        yield factory


async def _play(factory: EnvFactory, *messages: Message) -> Episode:
    """Play messages in the first task; without any, the solution."""
    [task] = factory.tasks("all", count=1)
    return await scripts.play(factory, task, *messages)


async def _play_each(folder: Path, rows: Mapping[str, Mapping[str, Any]], *messages: Message) -> dict[str, Episode]:
    """Play the same messages in rows of these kinds, all at once."""
    all_rows = [{**row, "kind": kind, "instruction": kind} for kind, row in rows.items()]
    async with _opened(folder, *all_rows) as factory:
        tasks = factory.tasks("all", count=len(rows))
        episodes = await asyncio.gather(*(scripts.play(factory, task, *messages) for task in tasks))
    assert {task.kind for task in tasks} == rows.keys()
    return {episode.task.kind: episode for episode in episodes}


async def test_the_solution_is_paid_and_an_empty_answer_is_not(tmp_path: Path) -> None:
    async with _opened(tmp_path, _ROW) as factory:
        solved, empty = await asyncio.gather(_play(factory), _play(factory, say("done")))
    assert (solved.outcome, solved.reward, solved.task.kind) == (Outcome.SCORED, 1.0, "sum")
    assert (empty.outcome, empty.reward) == (Outcome.SCORED, 0.0)
    assert empty.info["verdict"]["reason"] == "the verifier ended with exit code 1"
    assert "verifier" not in json.dumps([dict(solved.task.metadata), list(solved.task.prompt)])


async def test_the_verifier_sees_only_what_is_collected(tmp_path: Path) -> None:
    script = (
        "ls; touch /elsewhere; rm notes/old.txt; ln -s /etc/passwd link; echo 7 > sum.txt; echo 'exit 0' > check.sh"
    )
    async with _opened(tmp_path, _ROW) as factory:
        episode = await _play(factory, call("shell", command=script), say("done"))
        assert tool_results(episode) == ["notes\nnumbers.txt\nprepared"]
        assert episode.reward == 1.0 and episode.info["verdict"]["left_out"] == ["/workspace/link"]
    chosen = {**_ROW, "collect": ["out", "sum.txt"], "exclude": ["*.tmp"]}
    chosen["verifier"] = "test -e out/a -a ! -e out/b.tmp -a ! -e other && cat sum.txt"
    async with _opened(tmp_path, chosen) as factory:
        script = "mkdir out; touch out/a out/b.tmp other; echo 8 > sum.txt"
        episode = await _play(factory, call("shell", command=script), say("done"))
    assert episode.reward == 1.0 and episode.info["verdict"]["output"] == "8"


async def test_the_set_up_runs_once_and_the_answer_reaches_the_verifier(tmp_path: Path) -> None:
    row = {**_ROW, "verifier": 'cat prepared; read answer; test "$answer" = seven', "verifier_files": {}}
    async with _opened(tmp_path, row) as factory:
        look = call("shell", command="cat prepared")
        episodes = [await _play(factory, look, say(answer)) for answer in ("seven", "eight")]
    assert [episode.reward for episode in episodes] == [1.0, 0.0]
    seen = {*(tool_results(episode)[0] for episode in episodes), *(e.info["verdict"]["output"] for e in episodes)}
    assert len(seen) == 1, "the verifier's workspace was prepared with the agent's"


async def test_tools_windows_and_what_they_leave_out(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 1001))
    row = {**_ROW, "files": {"long.txt": text}, "user": "65534:65534"}
    calls = [
        call("read", path="long.txt", start=500, lines=2),
        call("shell", command="seq 1 5000; id -u; touch mine"),
        call("edit", path="long.txt", old="line 1", new="x"),
        call("edit", path="long.txt", old="line 777\n", new="here\n"),
        call("search", pattern="^here$", path="."),
        call("search", pattern="^line"),
        call("shell", command="printf 'wide%.0s' $(seq 1 1000) > wide.txt"),
        call("search", pattern="wide", path="wide.txt"),
        call("write", path="new.txt", text="a"),
        call("shell", command="sleep 60", timeout=0.2),
        call("shell", command="true", timeout=601),
        call("search", pattern="xyzzy"),
        call("read", path="nowhere.py"),
    ]
    async with _opened(tmp_path, row) as factory:
        answers = tool_results(await _play(factory, *calls, say("done")))
    assert answers[0] == "500  line 500\n501  line 501\n[lines 500 to 501 of 1000; read on with start=502]"
    assert "characters left out]" in answers[1] and answers[1].endswith("4999\n5000\n65534")
    assert "contains this passage 112 times (lines 1, 10, 11, 12, 13)" in answers[2]
    assert answers[3:5] == ["[replaced]", "./long.txt:777:here"]
    assert answers[5].splitlines()[-1] == "[more lines match: these are the first 100]"
    assert len(answers[5].splitlines()) == 101
    assert answers[7].endswith(" [cut: the line has 4002 characters]") and len(answers[7]) < 400
    assert answers[8] == "[new.txt has 1 bytes now]"
    assert "[killed: it ran longer than" in answers[9]
    assert "it is at most 600" in answers[10] and "[no line matches]" in answers[11] and "nowhere.py" in answers[12]


async def test_left_over_processes_and_cheats_are_not_paid(tmp_path: Path) -> None:
    forging = "(while :; do [ -e check.sh ] && touch wanted; done) >/dev/null 2>&1 & setsid sh -c 'sleep 50' & true"
    cheats = [*workspace_cheats()[:5], [call("shell", command=forging), say("done")]]
    row = {**_ROW, "verifier": "sleep 0.2; test -e wanted"}
    async with _opened(tmp_path, row) as factory:
        episodes = await asyncio.gather(*(_play(factory, *messages) for messages in cheats))
        forged = await _play(factory, call("shell", command=f"touch check.sh; {forging}; sleep 0.2"), say("done"))
    assert [(episode.outcome, episode.reward) for episode in episodes] == [(Outcome.SCORED, 0.0)] * len(cheats)
    assert forged.reward == 1.0, "the process does what it is said to do while it lives"


async def test_an_option_names_the_image_of_rows_without_one(tmp_path: Path) -> None:
    row = {name: value for name, value in _ROW.items() if name != "image"}
    async with _opened(tmp_path, row, image="host:pytest") as factory:
        [answer] = tool_results(await _play(factory, call("shell", command="python3 -m pytest --version"), say("done")))
        assert answer.startswith("pytest ")
    async with _opened(tmp_path, row, image="nothing/here:1") as factory:
        episode = await _play(factory, say("done"))
    assert episode.outcome is Outcome.ENV_FAULT and "there is no image 'nothing/here:1'" in episode.error


async def test_a_failing_set_up_is_a_fault_and_a_verifier_that_the_work_slows_down_is_not(tmp_path: Path) -> None:
    async with _opened(tmp_path, {**_ROW, "setup": "echo no room >&2; exit 3"}) as factory:
        episode = await _play(factory, say("done"))
    assert episode.outcome is Outcome.ENV_FAULT and "fails: no room" in episode.error
    row = {**_ROW, "verifier": "[ ! -e slow ] || sleep 100", "verifier_seconds": 1.0}
    async with _opened(tmp_path, row) as factory:
        episode = await _play(factory, call("shell", command="touch slow"), say("done"))
    assert episode.reward == 0.0 and episode.info["verdict"]["reason"] == "the verifier was ended: timeout"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("timeout: failed to run command ‘no-runner’: No such file or directory", True),
        ("env: can't execute 'no-runner': No such file or directory", True),
        ("make[1]: gcc: No such file or directory", True),
        ("E   urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", True),
        ("-bash: uvx: command not found", True),
        ("zsh:1: command not found: uvx", True),
        ("E   ModuleNotFoundError: No module named 'pytest'", True),
        ("bash: ./run: cannot execute binary file: Exec format error", True),
        ("  Could not connect to deb.debian.org:80 (199.232.1.1), connection timed out", True),
        ("E: Package 'curl' has no installation candidate", True),
        ("E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)", True),
        ("error: Failed to fetch: `https://index.example/pytest/`", True),
        ("npm ERR! request failed, reason: connect ECONNREFUSED 104.16.1.1:443", True),
        ("dial tcp: lookup proxy.golang.org on 127.0.0.11:53: server misbehaving", True),
        ("java.net.UnknownHostException: repo.maven.apache.org", True),
        ("ConnectTimeout: HTTPSConnectionPool(host='pypi.org', port=443): Max retries exceeded with url: /", True),
        ("Error: connect ECONNREFUSED 127.0.0.1:8080", False),
        ("HTTPConnectionPool(host='localhost', port=8080): Max retries exceeded with url: /", False),
        ("E   ModuleNotFoundError: No module named 'solution'", False),
        ("/tests/make_report.sh: out.csv: No such file or directory", False),
        ("environment.py: out.csv: No such file or directory", False),
        ("sudo: unable to resolve host workspace: Name or service not known", False),
        (">       assert 'Name or service not known' in said", False),
        ("E       assert 'Network is unreachable' in ''", False),
    ],
)
def test_what_names_an_obstacle(line: str, expected: bool) -> None:
    assert bool(obstacle_in(f"one\n{line}\nlast", lambda name: False)) is expected


async def test_a_small_image_needs_no_program_to_collect_a_file(tmp_path: Path) -> None:
    image = make_small_image(tmp_path / "root")
    (image.root / "bin/stat").unlink()
    row = {
        **_ROW,
        "instruction": "Write 7.",
        "setup": "",
        "image": str(image.root),
        "collect": ["sum.txt", "link", "none", "notes/old.txt/x"],
    }
    row |= {"verifier": '[ "$(cat sum.txt)" = 7 ]', "solution": "echo 7 > sum.txt; ln -s /etc link"}
    async with _opened(tmp_path, row) as factory:
        solved, empty = await asyncio.gather(_play(factory), _play(factory, say("done")))
    assert (solved.reward, solved.info["verdict"]["left_out"]) == (1.0, ["/workspace/link"]), solved.error
    assert empty.reward == 0.0


async def test_long_scripts_run(tmp_path: Path) -> None:
    """The kernel gives a program at most 128 KiB in one argument."""
    long = "# é\n" * 60_000
    row = {**_ROW, "setup": f"{long}echo made > prepared", "verifier": f"\n{long}read answer\n{_ROW['verifier']}"}
    async with _opened(tmp_path, {**row, "env": {"LARGE": "x" * 131_000}}) as factory:
        solved, empty = await asyncio.gather(_play(factory), _play(factory, say("done")))
    assert (solved.reward, empty.reward) == (1.0, 0.0), (solved.error, solved.info)


_BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"verifier": "no-runner -q"}, "no-runner: not found"),
    ({"verifier": "no-runner -q || exit 1"}, "no-runner: not found"),
    ({"verifier": "no-runner >/dev/null 2>&1"}, "exit code 127"),
    ({"verifier": "./check.sh"}, "./check.sh: Permission denied"),
    ({"setup": "touch /tmp/a.sh", "verifier": "/tmp/a.sh", "collect": []}, "/tmp/a.sh: Permission denied"),
    ({"verifier": "./check.sh", "collect": []}, "./check.sh: Permission denied"),
    ({"verifier": f"sh -c '{'#' * 140_000}'", "collect": []}, "sh: Argument list too long"),
    ({"verifier": "/opt/none/python check.py"}, "/opt/none/python: not found"),
    ({"verifier": "python3 -m tox"}, "No module named tox"),
    ({"verifier": "seq 99999999"}, "it was ended: output limit"),
    ({"verifier": "sleep 100", "verifier_seconds": 0.2}, "it was ended: timeout"),
    ({"verifier": "true", "env": {f"A{number}": "x" * 130_000 for number in range(20)}}, "Argument list too long"),
    ({"env": {"A": "x" * 200_000}}, "the environment variable 'A' has 200,002 bytes"),
    ({"verifier": "a\0b"}, "embedded null byte"),
]


async def test_a_verifier_that_cannot_run_is_a_fault(tmp_path: Path) -> None:
    rows = {f"{i}": {**_ROW, "setup": "", "collect": ["sum.txt"], **change} for i, (change, _) in enumerate(_BROKEN)}
    episodes = await _play_each(tmp_path, rows, call("write", path="sum.txt", text="7"), say("done"))
    for number, (change, reason) in enumerate(_BROKEN):
        episode = episodes[f"{number}"]
        assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None), (reason, episode.info)
        assert reason in episode.error and "\n" not in episode.error, (change.keys(), episode.error)


def test_an_evaluation_says_once_how_many_and_which_tasks_cannot_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    broken = [{**_ROW, "name": name, "instruction": name, "verifier": "no-runner"} for name in ("one", "two")]
    Path("tasks.jsonl").write_text("\n".join(map(json.dumps, [_ROW, *broken])))
    options = ["--env", "workspace", "--option", "data=tasks.jsonl", "--agent", "scripted:null", "--split", "all"]
    assert main(["eval", *options, "--tasks", "3", "-n", "2", "--out", "out"]) == 0
    told = capsys.readouterr().err
    assert told.count("2 tasks have no result, since every episode ended by a fault: ") == 1, told
    assert "no-runner: not found" in told and "one, two" in told.replace("two, one", "one, two")
    result = json.loads(Path("out/eval.json").read_text())
    assert (set(result["broken_tasks"]), result["episodes"]) == ({"one", "two"}, 2)


_ZEROS = ["./greet", "greet", "sh greet", "bash greet", "cat missing", "greet >/dev/null 2>&1 || exit 5", "false"]


async def test_what_the_agent_has_not_made_is_a_zero(tmp_path: Path) -> None:
    env = {"PATH": "/workspace:/usr/local/bin:/usr/bin:/bin"}
    rows = {verifier: {**_ROW, "setup": "", "verifier": verifier, "env": env} for verifier in _ZEROS}
    for verifier, episode in (await _play_each(tmp_path, rows, say("done"))).items():
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), (verifier, episode.error)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"verifer": "x"}, "there is no field verifer. Did you mean verifier?"),
        ({"instruction": ""}, "instruction is ''"),
        ({"verifier": None}, "it has no verifier"),
        ({"workdir": "work"}, "workdir is 'work': it is an absolute path of a folder below /"),
        ({"files": {"../x": ""}}, "'../x' is no path of a file or folder below /"),
        ({"collect": ["/"]}, "'/' is no path of a file or folder below /"),
        ({"verifier_seconds": 9999}, "verifier_seconds is 9999"),
    ],
)
def test_a_malformed_row_is_one_sentence(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow) as error:
        read_row({**_ROW, **change})
    assert str(error.value).startswith("it is no task of workspace: ") and "\n" not in str(error.value)
    assert reason in str(error.value)


def test_a_file_must_be_named() -> None:
    with pytest.raises(UserError, match="--option data=tasks.jsonl"):
        forge_env.make("workspace").tasks("all", count=1)


class _Closing(BuiltImage):
    """A base that notes its close."""

    closed: list[str]

    async def close(self) -> None:
        self.closed.append(self.workdir)


async def test_idle_bases_are_closed_and_used_ones_are_not(tmp_path: Path) -> None:
    _Closing.closed = []
    bases = Bases(None, most_idle=1)  # type: ignore[arg-type]  # it is only handed on

    async def make(name: str) -> BuiltImage:
        if name == "broken":
            raise UserError("there is no such base")
        return _Closing(files=UnpackedImage(root=tmp_path), workdir=name)

    async with bases.lease("a", lambda: make("a")) as first:
        for name in ("b", "c"):
            async with bases.lease(name, lambda name=name: make(name)):
                pass
        assert _Closing.closed == ["b"]
        with pytest.raises(EnvError, match="no such base"):
            async with bases.lease("x", lambda: make("broken")):
                pass
        async with bases.lease("a", lambda: make("another")) as second:
            assert second is first
        async with bases.lease("x", lambda: make("mended")) as mended:
            assert mended.workdir == "mended"
    await bases.close()
    assert sorted(_Closing.closed) == ["a", "b", "c", "mended"]
