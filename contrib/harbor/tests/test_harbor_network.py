"""Harbor tasks that need a network: refused without consent, and run with it, with the packages that they install."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forge_env
from contrib.harbor.config import read_task
from contrib.harbor.needs import fetching_call, network_need
from contrib.harbor.policies import agent_network, build_network, network_facts, read_consent, verifier_network
from contrib.harbor.tests.package_servers import APT_HOST, GREETING, PackageServer
from contrib.harbor.tests.playing import play, write_task
from contrib.workspaces.contract import LOOPBACK
from contrib.workspaces.tests.made_images import add_apt, add_npm, make_small_image
from envs.messages import call, say
from forge_env import Outcome
from forge_env.cli.main import main
from forge_env.core.errors import UserError

_SOURCES = f"echo 'deb [trusted=yes] http://{APT_HOST} ./' > /etc/apt/sources.list"
INSTALLS = {
    "apt": (add_apt, "apt-get", f"{_SOURCES} && apt-get update && apt-get install -y greeting", "greeting"),
    "pypi": (None, "sh", "python3 -m pip install greeting", "python3 -m greeting"),
    "npm": (add_npm, "npm", "npm install -g greeting", "greeting"),
}
_TEST = '#!/bin/sh\n{install}[ "$({say})" = "$(cat /app/answer)" ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n'
_TRUE, _COMMENT = "FROM host\nRUN true", "#!/bin/sh\n# pip install x\n"
_FETCHING = "#!/bin/sh\npip install pytest\necho 1 > /logs/verifier/reward.txt\n"


@pytest.fixture(params=["pypi", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("apt", "npm"))])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PackageServer]:
    kind = request.param
    if shutil.which(INSTALLS[kind][1]) is None or (kind == "apt" and shutil.which("dpkg-deb") is None):
        pytest.skip(f"this machine has no {INSTALLS[kind][1]}")
    (tmp_path / "served").mkdir()
    with PackageServer(tmp_path / "served", kind).serving() as serving:
        yield serving


@pytest.mark.parametrize("place", ["build", "verifier"])
async def test_packages_are_installed_with_consent_and_from_the_users_cache(
    tmp_path: Path, server: PackageServer, place: str
) -> None:
    kind = server.mirror.partition("=")[0]
    add, _, install, greet = INSTALLS[kind]
    base = tmp_path / "root" if add else "host:pip"
    if add:
        make_small_image(tmp_path / "root")
        add(tmp_path / "root")
    dockerfile = f"FROM {base}\nWORKDIR /app\n" + (f"RUN {install}\n" if place == "build" else "")
    test = _TEST.format(install=f"{install} || exit 1\n" if place == "verifier" else "", say=greet)
    files = {"environment/Dockerfile": dockerfile, "tests/test.sh": test}
    files["solution/solve.sh"] = f"#!/bin/sh\necho {GREETING} > /app/answer\n"
    task = write_task(tmp_path / "tasks/greet", "", **files)
    with pytest.raises(UserError, match="1 of 1 tasks need a network.*network=declared"):
        await play(task)
    assert not server.requests
    granted: dict[str, Any] = {"network": "declared", "mirrors": server.mirror}
    solved = await play(task, **granted)
    assert (solved.outcome, solved.reward) == (Outcome.SCORED, 1.0), (solved.error, solved.info)
    public = {part: ["public"] for part in ("agent", "verifier", "build")}
    assert solved.info["network"] == public | {"mirrors": [kind]}
    assert any("greeting" in request for request in server.requests)
    assert (await play(task, say("done"), **granted)).reward == 0.0


@pytest.mark.parametrize(
    ("solves", "outcome", "reward"), [(True, Outcome.SCORED, 1.0), (False, Outcome.ENV_FAULT, None)]
)
async def test_a_host_that_a_verifier_does_not_reach_is_a_fault_and_no_zero(
    tmp_path: Path, solves: bool, outcome: Outcome, reward: float | None
) -> None:
    """Only what is better than an untouched workspace was judged. A fetch of the agent's own program is none."""
    fetch = "import urllib.request as r, sys\ntry: r.urlopen('http://a.invalid')\nexcept OSError: print(end='')\n"
    test = "#!/bin/sh\npython3 /tests/fetch.py\n[ -e /tmp/done ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n"
    toml = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\n'
    task = write_task(tmp_path / "a", toml, **{"tests/test.sh": test, "tests/fetch.py": fetch})
    work = call("shell", command="touch done" if solves else "true")
    episode = await play(task, work, say("done"), network="declared")
    assert (episode.outcome, episode.reward) == (outcome, reward), episode.error
    assert solves or "cannot run here, whatever was done: a.invalid:80 cannot be reached" in episode.error
    own = write_task(tmp_path / "b", toml, **{"tests/test.sh": test.replace("/tests/fetch.py", "/tmp/own.py")})
    write = call("write", path="/tmp/own.py", text=fetch)
    assert (await play(own, write, say("done"), network="declared")).reward == 0.0


def test_check_and_a_run_refuse_what_cannot_run_and_say_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        write_task(tmp_path / name, "", **{"tests/test.sh": _FETCHING} if name != "c" else {})
    sentence = (
        "2 of 3 tasks need a network, which tasks do not have unless you consent: a (line 2 of tests/test.sh calls"
    )
    for command in (
        ["check", f"harbor:{tmp_path}"],
        ["eval", "--env", f"harbor:{tmp_path}", "--agent", "scripted:expert", "--out", str(tmp_path / "out")],
    ):
        assert main(command) == 2, command
        error = capsys.readouterr().err
        assert sentence in error and "network=declared" in error and "Traceback" not in error
    assert len(forge_env.make(f"harbor:{tmp_path}", network="declared").tasks("all", count=3)) == 3


async def test_images_are_pulled_only_where_every_public_host_is_granted(tmp_path: Path) -> None:
    task = write_task(tmp_path / "a", '[environment]\ndocker_image = "registry.invalid/a:1"\n')
    episode = await play(task, say("done"), network="a.org")
    assert episode.outcome is Outcome.ENV_FAULT and "there is no image 'registry.invalid/a:1'" in episode.error


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("apt-get update && apt-get install -y curl", "apt-get update"),
        ("DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 install curl", "apt-get -qq -o Acqu"),
        ("curl -LsSf https://example.org/uv/0.9.5/install.sh | sh", "curl"),
        ("if ! wget -q https://example.org/x; then exit 1; fi", "wget"),
        ("uvx -p 3.13 -w pytest==8.4.1 pytest /tests/test_outputs.py -rA", "uvx"),
        ("uv run --with pytest pytest", "uv run --with"),
        ("uv run /tests/judge.py", "uv run /tests/judge.py"),
        ("uv run -p 3.12 /tests/judge.py", "uv run -p 3.12 /tests/judge.py"),
        ("uv run pytest -v /tests/test_outputs.py", ""),
        ("sudo -E true; /opt/venv/bin/python3 -m pip install pytest", "/opt/venv/bin/python3 -m pip install"),
        ('bash -c "pip3 install --quiet pytest"', "pip3 install"),
        ("cd /app && npm ci", "npm ci"),
        ("sh -c 'apt-get update'", "apt-get update"),
        ("git clone https://example.org/a/b.git", "git clone"),
        ("FOO='a b' timeout 30 npx jest", "npx"),
        ("curl -s http://localhost:8000/health | grep ok", ""),
        ("curl -s $URL/health && wget http://127.0.0.1:80/x -O - && curl http://api:8080", ""),
        ("git clone /srv/repo.git copy", ""),
        ("uvx-is-not-there; curl-config https://a.org; npm-check install; pip installs", ""),
        ("echo 'apt-get install curl'", ""),
        ("command -v uvx; which npm; uv --version; uv run pytest; npm test", ""),
        ("python3 -m pip install --no-index --find-links /wheels x", ""),
        ("python3 -m pytest /tests/test_pip_install.py", ""),
    ],
)
def test_what_a_command_line_fetches(line: str, call: str) -> None:
    assert fetching_call(line).startswith(call) and bool(fetching_call(line)) is bool(call)


@pytest.mark.parametrize(
    ("toml", "files", "need"),
    [
        ("", {"environment/Dockerfile": f"{_TRUE} && \\\n  apt-get update\n"}, "line 2 of environment/Dockerfile"),
        ("", {"solution/solve.sh": "#!/bin/sh\npip install x\n"}, "line 2 of solution/solve.sh calls pip install"),
        ("", {"tests/test.sh": f"{_COMMENT}curl \\\n  http://a.org\n"}, "line 3 of tests/test.sh calls curl"),
        ("", {}, ""),
        ('[environment]\nnetwork_mode = "no-network"\n', {"tests/test.sh": _FETCHING}, ""),
        ('[verifier]\nnetwork_mode = "no-network"\n', {"tests/test.sh": _FETCHING}, ""),
        ('[environment]\ndocker_image = "host"\n', {"environment/Dockerfile": "FROM host\nRUN pip install x\n"}, ""),
        ('[[environment.mcp_servers]]\nname = "a"\nurl = "http://a.org/sse"\n', {}, "the MCP server 'a' is at"),
    ],
)
def test_what_of_a_task_needs_a_network(tmp_path: Path, toml: str, files: dict[str, str], need: str) -> None:
    found = network_need(read_task(write_task(tmp_path / "task", toml, **files)))
    assert found.startswith(need) and bool(found) is bool(need)


_LISTED = 'network_mode = "allowlist"\nallowed_hosts = ["a.org", "10.0.0.1", "127.0.0.1.", " 169.254.169.254"]\n'


@pytest.mark.parametrize(
    ("toml", "network", "agent", "build", "facts"),
    [
        ("", "declared", (("*",), ()), (("*",), ()), ["public"]),
        (_LISTED, "declared", (("a.org",), ()), (("*",), ()), ["a.org"]),
        (_LISTED, "declared, 10.0.0.1", (("a.org",), ("10.0.0.1",)), (("*",), ("10.0.0.1",)), ["a.org", "10.0.0.1"]),
        (_LISTED, "b.org:8080", ((), ("b.org:8080",)), ((), ("b.org:8080",)), ["b.org:8080"]),
        ('network_mode = "no-network"\n', "declared,b.org", None, (("*",), ("b.org",)), None),
        ("", "off", None, None, "loopback"),
        (_LISTED, "off", None, None, "loopback"),
    ],
)
def test_a_task_gets_what_it_declares_and_no_private_address(
    tmp_path: Path, toml: str, network: str, agent: Any, build: Any, facts: Any
) -> None:
    task, consent = read_task(write_task(tmp_path / "task", f"[environment]\n{toml}")), read_consent(network, "")
    networks = agent_network(task, consent), verifier_network(task, None, consent), build_network(consent)
    for granted, hosts in zip(networks, (agent, agent, build), strict=True):
        assert (granted == LOOPBACK) if hosts is None else (granted.allowed_hosts, granted.own_hosts) == hosts
    assert network_facts(task, consent).get("agent") == facts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"network": "on/"}, "allowed_hosts has 'on/'"),
        ({"network": ""}, "network is ''; it is off, or declared"),
        ({"network": "off,declared"}, "network is 'off,declared'"),
        ({"network": "declared,*"}, "allowed_hosts has '*'"),
        ({"network": "declared,localhost"}, "is named with its port, as localhost:8080"),
        ({"mirrors": "conda=http://a.org"}, "mirrors has 'conda=http://a.org'; an entry is pypi=URL or npm=URL"),
        ({"mirrors": "apt=https://a.org"}, "mirrors has 'apt=https://a.org'"),
        ({"mirrors": "pypi=http://me:secret@a.org"}, "mirrors has 'pypi=...'"),
        ({"mirrors": "pypi=http://a.org:x"}, "mirrors has"),
        ({"mirrors": "pypi=http://a.org"}, "mirrors are for tasks with a network, and network is off"),
        ({"network": "[::1]:8080"}, "allowed_hosts has '[::1]:8080'"),
        ({"network": "declared,LOCALHOST"}, "is named with its port, as localhost:8080"),
        ({"network": "127.0.0.1:3128"}, "port 3128 of a workspace is its proxy's"),
    ],
)
def test_what_is_no_consent_is_one_sentence(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    task = write_task(tmp_path / "task", "")
    with pytest.raises(UserError) as error:
        forge_env.make(f"harbor:{task}", **options).tasks("all", count=1)
    assert reason in str(error.value) and "\n" not in str(error.value)
