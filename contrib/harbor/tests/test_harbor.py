"""Harbor tasks: the format, verifiers in separate and shared workspaces, steps, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import forge_env
from agents.scripted import ScriptedAgent
from contrib.harbor.config import find_tasks, read_task
from contrib.harbor.env import Harbor
from contrib.harbor.tests.playing import TEST, TOML, play, write_task
from contrib.workspaces.bug_fix.to_harbor import main as write_bug_fixes
from contrib.workspaces.env.cheats import SCRIPTS, workspace_cheats
from envs.messages import call, say
from forge_env import Outcome
from forge_env.core.errors import UserError
from tests.helpers.scripts import tool_results

_IN_TMP = TOML.replace('workdir = "/project"', 'workdir = "/tmp"')
_BY_BASH = {"tests/test.sh": TEST.replace("#!/bin/sh", "#!/usr/bin/env bash")}
_ONE = "echo 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def dockerfile() -> str:
    return (
        "FROM host\nENV COLOUR=red\nWORKDIR /project\nRUN echo $COLOUR > colour.txt && mkdir -p sub\nCOPY data/ sub/\n"
        "RUN [ $(($(stat -f -c '%b * %S' /))) -ge 10000000000 ]\n"  # as large as published tasks need
    )


async def test_the_solution_is_paid_and_an_empty_answer_is_not(tmp_path: Path) -> None:
    task = write_task(tmp_path / "hello", _IN_TMP)
    solved = await play(task)
    assert (solved.outcome, solved.reward) == (Outcome.SCORED, 1.0)
    facts = solved.info["verdict"]
    assert (facts["verifier"], facts["forgeable"], facts["rewards"]) == ("fork", False, {"reward": 1.0})
    assert (await play(task, say("done"))).reward == 0.0
    assert "both have only their own loopback" in solved.info["network"]["note"]


async def test_a_dockerfile_is_built_without_a_daemon(tmp_path: Path, dockerfile: str) -> None:
    toml = '[environment]\nnetwork_mode = "no-network"\n'
    task = write_task(tmp_path / "built", toml, environment__Dockerfile=dockerfile, environment__data__a="one")
    episode = await play(task, call("shell", command="pwd; cat colour.txt sub/a; echo; echo $COLOUR"), say("done"))
    answers = tool_results(episode)
    assert answers == ["/project\nred\none\nred"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RUN exit 3", "RUN exit 3: it ended with nonzero (3)"),
        ("COPY nothing /x", "there is no 'nothing' in the folder of the Dockerfile"),
        ("COPY ../../secret /x", "leads out of the folder of the Dockerfile"),
        ("COPY --from=host .. /x", "leads out of the image"),
        ("COPY --from=base /x /x", "there is no image 'base' on this machine"),
        ("COPY --link a /x", "takes sources, a target, --chown and --from"),
        ("FROM host", "FROM needs buildah or docker"),
        ("RUN --mount=type=bind true", "need buildah or docker"),
    ],
)
async def test_what_a_dockerfile_cannot_do_is_a_sentence(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "secret").write_text("x")
    task = write_task(tmp_path / "bad", "", environment__Dockerfile=f"FROM host\n{line}\n")
    episode = await play(task, say("done"))
    assert episode.outcome is Outcome.ENV_FAULT
    assert "Dockerfile:2" in episode.error and reason in episode.error, episode.error


async def test_artifacts_alone_reach_a_separate_verifier(tmp_path: Path) -> None:
    toml = 'artifacts = ["hello.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
    toml += _IN_TMP
    test = """#!/bin/sh
[ -e /tmp/other.txt ] && exit 1
[ "$(cat /tmp/hello.txt)" = hello ] && echo '{"reward": 0.5, "speed": 2}' > /logs/verifier/reward.json
echo 1 > /logs/verifier/reward.txt
"""
    task = write_task(tmp_path / "separate", toml, tests__test_sh="", **{"tests/test.sh": test})
    episode = await play(task, call("shell", command="echo hello > hello.txt; echo x > other.txt"), say("done"))
    assert episode.reward == 0.5 and episode.info["verdict"]["rewards"] == {"reward": 0.5, "speed": 2.0}
    assert episode.info["verdict"]["forgeable"] is False
    linked = await play(task, call("shell", command="ln -s /etc/passwd hello.txt"), say("done"))
    assert linked.reward == 0.0 and "hello.txt cannot be copied" in linked.info["verdict"]["reason"]


async def test_a_verifier_without_a_reward_is_a_fault_of_the_task_or_zero_for_who_broke_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml, runs, run = _IN_TMP, [], Harbor._run

    async def counted(self: Harbor, *arguments: Any) -> Any:
        runs.append(arguments)
        return await run(self, *arguments)

    monkeypatch.setattr(Harbor, "_run", counted)
    silent = write_task(tmp_path / "silent", toml, **{"tests/test.sh": "#!/bin/sh\nexit 0\n"})
    episode = await play(silent, say("done"))
    assert episode.outcome is Outcome.ENV_FAULT and episode.reward is None
    assert "nor does it for an untouched workspace" in episode.error
    assert len(runs) == 1, "an agent that has done nothing has left an untouched workspace"
    bad = write_task(tmp_path / "bad", toml, **{"tests/test.sh": "#!/bin/sh\necho nan > /logs/verifier/reward.txt\n"})
    assert (await play(bad, say("done"))).outcome is Outcome.ENV_FAULT
    fragile = write_task(tmp_path / "fragile", toml, **{"tests/test.sh": "#!/bin/sh\n[ -e /tmp/x ] && exit 1\n" + TEST})
    broken = await play(fragile, call("shell", command="touch /tmp/x"), say("done"))
    assert (broken.outcome, broken.reward) == (Outcome.SCORED, 0.0)
    assert broken.info["verdict"]["reason"] == "the verifier wrote no reward"


_WRITES = "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
CANNOT_RUN = {
    "the usual form": (
        "#!/bin/bash\nget=curl run=uvx\n$get -LsSf https://uv.invalid/install.sh | sh\nsource $HOME/.local/bin/env\n"
        f"$run -w pytest==8.4.1 pytest /tests/test_outputs.py -rA\n{_WRITES}",
        "curl: command not found; /tests/test.sh: line 5: uvx: command not found",
    ),
    "a program that is not there, in a log": (
        f"#!/bin/sh\nno-runner /tests > /logs/verifier/log.txt 2>&1\n{_WRITES}",
        "no-runner: not found",
    ),
    "a missing interpreter": (f"#!/bin/sh\nenv no-python3.9 /tests/x.py\n{_WRITES}", "no-python3.9"),
    "a missing runner of tests": (f"#!/bin/sh\npython3 -m nox\n{_WRITES}", "No module named nox"),
    "a name that does not resolve": (
        f"#!/bin/sh\npython3 -c 'import urllib.request as r; r.urlopen(\"http://a.example.org\")'\n{_WRITES}",
        "Name or service not known",
    ),
    "a trap that writes the zero": (
        "trap 'echo 0 > /logs/verifier/reward.txt' ERR\nset -e\nrun=clone\ngit $run https://example.org/a.git /tmp/a\n"
        + _ONE,
        "'remote-https' is not a git command",
    ),
    "a script without an interpreter": (f"#!/no/such/shell\n{_ONE}", "required file not found"),
    "too much output": ("#!/bin/sh\nseq 99999999\n", "ended: output limit"),
    "a time limit": ("#!/bin/sh\nsleep 60\n", "ran longer than 1 s"),
    "a user that is not there": ("#!/bin/sh\n" + _ONE, "there is no user 'ghost'"),
}


@pytest.mark.parametrize(("test", "reason"), CANNOT_RUN.values(), ids=CANNOT_RUN.keys())
async def test_a_verifier_that_cannot_run_is_a_fault_and_says_why(tmp_path: Path, test: str, reason: str) -> None:
    settings = {"ran longer": "timeout_sec = 1", "ghost": "user = 'ghost'"}
    toml = next((text for words, text in settings.items() if words in reason), "")
    task = write_task(tmp_path / "task", f"{_IN_TMP}[verifier]\n{toml}\n", **{"tests/test.sh": test})
    episode = await play(task, call("shell", command="touch made"), say("done"))
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None), episode.info
    assert reason in episode.error and "\n" not in episode.error, episode.error


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        (f"#!/bin/sh\n/tmp/greet || greet\n{_WRITES}", 0.0),  # what the agent was to make is not there
        (f"#!/bin/sh\nsh /tmp/made\n{_WRITES}", 0.0),  # only what was submitted says that
        (f"#!/bin/sh\nuvx-is-not-there\ntest -e /tmp/made\n{_WRITES}", 1.0),  # and it could judge all the same
        (f"#!/bin/sh\nuvx-is-not-there\ntest ! -e /tmp/made\n{_WRITES}", 0.0),  # also what is worse than nothing
        (f"sh /tmp/made\n[[ -e /tmp/made ]]\n{_WRITES}", 1.0),  # without an interpreter it is bash
    ],
)
async def test_what_could_judge_is_a_verdict(tmp_path: Path, test: str, reward: float) -> None:
    toml = _IN_TMP.replace("[metadata]", "[verifier]\nenvironment_mode = 'shared'\n[metadata]")
    task = write_task(tmp_path / "task", toml, **{"instruction.md": "Install Greet.", "tests/test.sh": test})
    episode = await play(task, call("write", path="made", text="echo x: 1: uvx: not found >&2; exit 3\n"), say("done"))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, reward), episode.error


async def test_steps_follow_each_other_and_a_threshold_ends_them(tmp_path: Path) -> None:
    toml = """
multi_step_reward_strategy = "mean"
[environment]
docker_image = "host"
workdir = "/tmp"
[[steps]]
name = "one"
min_reward = 1.0
[[steps]]
name = "two"
"""
    test = "#!/bin/sh\n[ -e /tmp/NAME ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    files = {}
    for name in ("one", "two"):
        files[f"steps/{name}/instruction.md"] = f"Make the file {name}."
        files[f"steps/{name}/tests/test.sh"] = test.replace("NAME", name)
        files[f"steps/{name}/solution/solve.sh"] = f"#!/bin/sh\ntouch /tmp/{name}\n"
    task = write_task(tmp_path / "steps", toml, **files)
    solved = await play(task)
    assert solved.reward == 1.0 and solved.info["verdict"]["steps"] == [{"reward": 1.0}, {"reward": 1.0}]
    users = [message["content"] for message in solved.messages if message["role"] == "user"]
    assert users == ["Make the file one.", "Make the file two."]
    half = await play(task, call("shell", command="touch one; ls /tests"), say("done"), say("done"))
    assert half.reward == 0.5
    assert "No such file" in next(m["content"] for m in half.messages if m["role"] == "tool")
    assert (await play(task, say("done"))).info["verdict"]["steps"] == [{"reward": 0.0}]


async def test_what_setup_changes_among_programs_is_there_for_the_verifier_as_it_was(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    files = {}
    for name, others in (("one", ""), ("two", "[ -e /tmp/made ] && ")):
        files[f"steps/{name}/instruction.md"] = "Make the file made."
        files[f"steps/{name}/workdir/setup.sh"] = f"[[ a ]] && {others}echo {name} > /usr/local/bin/{name}\n"
        test = (
            '[ "$(cat /usr/local/bin/one)" = one ] && [ -e /tmp/made ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
        )
        files[f"steps/{name}/tests/test.sh"] = f"#!/bin/sh\n{test}"
    task = write_task(tmp_path / "steps", toml, **files)
    change = call("shell", command="touch made; echo another > /usr/local/bin/one")
    episode = await play(task, change, say("done"), say("done"))
    assert episode.info["verdict"]["steps"] == [{"reward": 1.0}, {"reward": 1.0}], (episode.error, episode.info)
    assert "/usr/local/bin/one" in episode.info["verdict"]["not_counted"]


async def test_an_untouched_workspace_has_the_files_and_the_setup_of_its_steps(tmp_path: Path) -> None:
    """What a step brings is no obstacle, whatever the agent's program says."""
    toml = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\n[[steps]]\nname = "one"\n'
    test = f"#!/bin/sh\nsh /tmp/made\nchecker && python3 /tmp/bin/check && test -e /tmp/solved\n{_WRITES}"
    files = {"instruction": "Make it.", "workdir/setup.sh": "ln -s $(command -v cat) /usr/local/bin/checker\n"}
    files |= {"workdir/bin/check": "", "tests/test.sh": test}
    names = {name if "/" in name else f"{name}.md": text for name, text in files.items()}
    task = write_task(tmp_path / "a", toml, **{f"steps/one/{name}": text for name, text in names.items()})
    episode = await play(task, call("write", path="made", text="echo x: 1: uvx: not found >&2\n"), say("done"))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), episode.error


async def test_each_step_has_the_image_of_its_own_verifier(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\n[verifier]\nenvironment_mode = "separate"\n'
    files = {}
    for name in ("one", "two"):
        toml += f'[[steps]]\nname = "{name}"\n'
        files[f"steps/{name}/instruction.md"] = name
        files[f"steps/{name}/tests/Dockerfile"] = f"FROM host\nRUN touch /etc/{name}\n"
        files[f"steps/{name}/tests/test.sh"] = f"#!/bin/sh\n[ -e /etc/{name} ]\n{_WRITES}"
    episode = await play(write_task(tmp_path / "steps", toml, **files), say("done"), say("done"))
    assert episode.outcome is Outcome.SCORED, episode.error
    assert episode.info["verdict"]["steps"] == [{"reward": 1.0}, {"reward": 1.0}]


async def test_no_cheat_is_paid_in_a_fork(tmp_path: Path) -> None:
    """Nor by a separate verifier, whose task the audit finds sound: test_harbor_audit.py."""
    fork = write_task(tmp_path / "fork", _IN_TMP, **_BY_BASH)
    episodes = await asyncio.gather(*(play(fork, *messages) for messages in workspace_cheats()))
    assert [episode.reward for episode in episodes] == [0.0] * len(SCRIPTS)
    assert (await play(fork)).reward == 1.0


async def test_a_shared_verifier_can_be_forged_and_says_so(tmp_path: Path) -> None:
    asked = write_task(tmp_path / "asked", f'[verifier]\nenvironment_mode = "shared"\n{_IN_TMP}', **_BY_BASH)
    silent = write_task(tmp_path / "silent", _IN_TMP, **_BY_BASH)
    cheat = call("shell", command=SCRIPTS["interpreters are replaced"]), say("done")
    for forged in (await play(asked, *cheat), await play(silent, *cheat, shared_verifiers=True)):
        assert forged.reward == 1.0 and forged.info["verdict"]["forgeable"] is True
        assert "could have decided" in forged.info["verdict"]["forgeable_because"]


async def test_a_fork_has_what_was_made_and_the_programs_of_the_image(tmp_path: Path) -> None:
    """The work may lie among programs if it is the working directory, or an artefact."""
    toml = """artifacts = ["/etc/asked"]
[environment]
docker_image = "host"
workdir = "/opt/work"
env = { PATH = "/opt/work/.venv/bin:/tools/bin:/usr/local/bin:/usr/bin:/bin" }
"""
    test = (
        "#!/bin/sh\ncd /; cat opt/work/a data/b etc/asked; ls -A opt/work tools etc/other root/.bashrc_x 2>&1\n" + _ONE
    )
    task = write_task(tmp_path / "fork", toml, **{"tests/test.sh": test})
    script = """mkdir -p .venv/bin .venv/lib/python3 /data /tools/bin; echo a > a; echo b > /data/b; echo c > /etc/asked
for file in .venv/bin/python3 .venv/lib/python3/site.py .venv/pyvenv.cfg /tools/bin/x /etc/other ~/.bashrc_x; do
    echo evil > $file
done"""
    episode = await play(task, call("shell", command=script), say("done"))
    facts = episode.info["verdict"]
    assert episode.reward == 1.0 and facts["output"].startswith("a\nb\nc\n"), facts
    assert "opt/work:\n.venv\na\n" in facts["output"] and facts["output"].endswith("tools:")
    assert facts["output"].count("No such file") == 2 and "/etc/other" in facts["not_counted"]
    assert "/opt/work/.venv/bin/python3" in facts["not_counted"] and "/etc/asked" not in facts["not_counted"]


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("[enviroment]\n", "there is no field enviroment. Did you mean environment?"),
        ("[environment]\nmemory = 3\n", "there is no field environment.memory. Did you mean memory_mb?"),
        ("[[steps]]\nname = 'a'\ncolour = 1\n", "there is no field steps.0.colour"),
        ("[environment]\ngpus = 2\n", "asks for 2 GPUs, which a workspace does not have"),
        ("[environment]\nos = 'windows'\n", "asks for Windows"),
        ("[verifier]\ntimeout_sec = 'long'\n", "verifier.timeout_sec is 'long'"),
        ("schema_version = '9.0'\n", "schema_version is '9.0'; known are 1.0"),
        ("artifacts = ['../x']\n", "the artefact '../x' is no path"),
        ("[[steps]]\nname = '../x'\n", "has no name for a folder"),
        ("[environment]\nmemory = 'much'\n", "memory is 'much'; it is a size such as '2G'"),
        ("[environment]\nallowed_hosts = ['a.org']\n", "needs network_mode = 'allowlist'"),
        ("[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['10.0.0.0/8']\n", "allowed_hosts has '10.0.0.0/8'"),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n", "is for the service 'db'"),
        ("[[steps]]\nname = 'a'\nagent = { network_mode = 'no-network' }\n", "asks for another network of its agent"),
        ("[verifier]\ncolect = []\n", "there is no field verifier.colect. Did you mean collect?"),
        ("[environment.healthcheck]\ncomand = 'x'\n", "environment.healthcheck.command"),
        ("= 1\n", "cannot be read"),
    ],
)
def test_a_malformed_task_is_one_sentence(tmp_path: Path, toml: str, reason: str) -> None:
    with pytest.raises(UserError) as error:
        read_task(write_task(tmp_path / "bad", toml))
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        find_tasks(tmp_path / "nothing")
    with pytest.raises(UserError, match="has no Harbor task"):
        find_tasks(tmp_path)
    task = write_task(tmp_path / "a")
    (task / "instruction.md").unlink()
    with pytest.raises(UserError, match="has no instruction.md"):
        find_tasks(tmp_path)
    (task / "instruction.md").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="is a link out of its task"):
        find_tasks(tmp_path)


async def test_a_task_that_has_changed_since_it_was_drawn_is_refused(tmp_path: Path) -> None:
    path = write_task(tmp_path / "hello")
    async with forge_env.make(f"harbor:{path}") as factory:
        [task] = factory.tasks("all", count=1)
        (path / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        agent, limits = ScriptedAgent(lambda messages: say("done")), factory.episode_limits()
        episode = await forge_env.run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)
    assert episode.outcome is Outcome.ENV_FAULT and "have changed" in episode.error


def test_splits_are_apart(tmp_path: Path) -> None:
    write_bug_fixes([str(tmp_path / "tasks"), "--count", "11", "--level", "0"])
    factory: Any = forge_env.make(f"harbor:{tmp_path / 'tasks'}")
    train, test = factory.tasks("train", count=10), factory.tasks("test", count=1)
    assert len({task.id for task in (*train, *test)}) == 11
    with pytest.raises(UserError, match="ask for fewer"):
        factory.tasks("test", count=2)
