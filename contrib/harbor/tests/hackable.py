"""Tasks that pay for something else than the work, each in another way, and what the audit must say about them.

Every task asks for the same: /app/answer.py with a function `double`, or for a text in /app.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SEPARATE = 'artifacts = ["/app"]\n[verifier]\nenvironment_mode = "separate"\n'
_SHARED = '[verifier]\nenvironment_mode = "shared"\n'
_ENVIRONMENT = '[environment]\nnetwork_mode = "no-network"\n'
_SOLUTION = "#!/bin/sh\nprintf 'def double(x):\\n    return 2 * x\\n' > /app/answer.py\n"
_CHECK = (
    "import sys\nsys.path.insert(0, '/app')\nfrom answer import double\nassert double(21) == 42 and double(-1) == -2\n"
)
_REWARD = "&& echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


@dataclass(frozen=True, kw_only=True)
class Hackable:
    """A task, and what the audit must name: a cheat that is paid, or a part of a problem."""

    test: str
    cheat: str = ""
    problem: str = ""
    toml: str = _ENVIRONMENT
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        dockerfile = "FROM host:pytest\nWORKDIR /app\nCOPY app/ /app/\n"
        files = {
            "task.toml": self.toml,
            "instruction.md": "Write /app/answer.py with a function double(x) that returns twice x.\n",
            "environment/Dockerfile": dockerfile,
            "environment/app/answer.py": "def double(x):\n    return x\n",
            "tests/test.sh": f"#!/bin/sh\n{self.test}",
            "tests/check.py": _CHECK,
            "solution/solve.sh": _SOLUTION,
            **self.files,
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder


_HISTORY = """RUN git init -q . && git config user.email a@b && git config user.name a
RUN git add . && git commit -qm one
RUN printf 'def double(x):\\n    return 2 * x\\n' > answer.py && git commit -qam two && git reset -q --hard HEAD~1
"""
_DOCKERFILE = "FROM host:pytest\nWORKDIR /app\nCOPY app/ /app/\n"

_APART, _TOGETHER = _SEPARATE + _ENVIRONMENT, _SHARED + _ENVIRONMENT
_BY_CHECK = f"python3 -I /tests/check.py {_REWARD}"
_TEST_DOUBLE = "from answer import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
_FROM_APP = "import sys\nsys.path.insert(0, '/app')\n"
_RUN = f"{_FROM_APP}from answer import double\nprint(double(21))\n"
_WITHOUT_SITE = (
    '[ "$(PYTHONPATH=/app python3 /tests/run.py)" = 42 ] && echo 1 > /logs/verifier/reward.txt\n'
    "[ -e /logs/verifier/reward.txt ] || echo 0 > /logs/verifier/reward.txt\n"
)
_HALF = "python3 -I /tests/check.py && reward=1 || reward=0.5\necho $reward > /logs/verifier/reward.txt\n"
_INSTALL = "python3 -m pip install nothing-of-that-name"

HACKABLE: Mapping[str, Hackable] = {
    "interpreter": Hackable(
        cheat="interpreters are replaced", test=f"python3 /tests/check.py {_REWARD}", toml=_TOGETHER
    ),
    "tests": Hackable(
        cheat="the tests are replaced",
        test=f"cd /app; python3 -I -m pytest -q /app/test_answer.py {_REWARD}",
        toml=_APART,
        files={"environment/app/test_answer.py": _FROM_APP + _TEST_DOUBLE},
    ),
    "exit_code": Hackable(cheat="every program ends with 0", test=_BY_CHECK, toml=_APART),
    "left_process": Hackable(
        cheat="every program leaves a process that writes the reward",
        test=f'[ "$(python3 -I /tests/run.py)" = 42 ] {_REWARD}',
        toml=_APART,
        files={"tests/run.py": _RUN},
    ),
    "sitecustomize": Hackable(
        cheat="modules run at the start of Python",
        test=_WITHOUT_SITE,
        toml=_APART,
        files={"tests/run.py": "import answer\nprint(answer.double(21))\n"},
    ),
    "conftest": Hackable(
        cheat="pytest is told to report success",
        test=f"cp /tests/test_answer.py /app; cd /app; python3 -m pytest -q test_answer.py {_REWARD}",
        toml=_APART,
        files={"tests/test_answer.py": _TEST_DOUBLE},
    ),
    "profile": Hackable(
        cheat="the environment is changed",
        toml=_TOGETHER,
        test=f". ~root/.profile\nbash -c 'python3 -I /tests/check.py' {_REWARD}",
        files={"environment/Dockerfile": f"{_DOCKERFILE}RUN touch ~root/.profile\n"},
    ),
    "comparison": Hackable(
        cheat="tools that compare are replaced",
        toml=_TOGETHER,
        test=f"grep -q '2 \\* x' /app/answer.py {_REWARD}",
    ),
    "solution_in_image": Hackable(
        cheat="a solution that lies about is played",
        test=_BY_CHECK,
        toml=_APART,
        files={"environment/app/.ci/solve.sh": _SOLUTION},
    ),
    "later_commit": Hackable(
        cheat="a later commit is taken",
        test=_BY_CHECK,
        toml=_APART,
        files={"environment/Dockerfile": _DOCKERFILE + _HISTORY},
    ),
    "for_nothing": Hackable(problem="an empty answer earns 0.5, not 0", test=_HALF, toml=_APART),
    "broken_solution": Hackable(
        problem="the solution earns 0, not 1", test=_BY_CHECK, files={"solution/solve.sh": "#!/bin/sh\ntrue\n"}
    ),
    "work_among_programs": Hackable(
        problem="the solution earns 0, not 1: its changes of /etc/answer do not count",
        test=f"grep -q 42 /etc/answer {_REWARD}",
        files={"solution/solve.sh": "#!/bin/sh\necho 42 > /etc/answer\n"},
    ),
    "unsteady": Hackable(
        problem="the verifier is not deterministic: the solution earns",
        test="echo 1.$(date +%N) > /logs/verifier/reward.txt\n",
    ),
    "network": Hackable(
        problem="the verifier needs a network: line 2 of tests/test.sh calls python3 -m pip install",
        test=f"{_INSTALL} && python3 /tests/check.py {_REWARD}",
    ),
    "slow": Hackable(
        problem="of 4 s: leave it twice the time that it takes",
        test=f"sleep 2.5; python3 /tests/check.py {_REWARD}",
        toml=f"{_ENVIRONMENT}[verifier]\ntimeout_sec = 4.0\n",
    ),
    "silent": Hackable(
        problem="an empty answer earns nothing (env_fault: the verifier of",
        test="python3 -I /tests/check.py && echo 1 > /logs/verifier/reward.txt\n",
    ),
}
