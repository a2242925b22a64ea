"""What keeps a verifier from running: a program that is not there, or a network. Then there is no verdict, and no zero.

What a verifier writes may come from submitted code. So an obstacle counts only if the verifier meets one in a workspace
that no agent has touched, too.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from contrib.workspaces.contract import CommandResult
from contrib.workspaces.env.output import shorten
from forge_env.core.errors import EnvError, SandboxUnavailable, UserError
from forge_env.core.sandbox import ExecStatus

IsWork = Callable[[str], bool]
"""Whether a program may be one that the agent was asked to make: that it is not there is a verdict."""
_SHELL = r"(?:\S+: (?:line )?\d+: |-?(?:\S*/)?\w*sh: (?:line \d+: |\d+: )?|(?:sudo|make\S*): )(?:exec: )?"
_CALLER = (
    r"(?:\S*/)?(?:env|timeout|nohup|nice|setsid|stdbuf|xargs|make(?:\[\d+\])?): "
    r"(?:(?:failed to|can't|cannot) (?:run command|exec|execute) )?"
)
_MODULES = "pytest|pip|uv|tox|nox|coverage|ensurepip|venv|virtualenv"
_ELSEWHERE = r"(?!localhost|127\.|\[?::1|0\.0\.0\.0)"
"""Before the name of a host: a task may ask for a server on this machine, which is then the agent's work."""
_PROGRAM = re.compile(
    rf"{_SHELL}(?P<shell>[^\s:]+): (?:[Cc]ommand )?not found$"
    rf"|{_SHELL}(?P<path>\S*/s?bin/[^\s:]+): No such file or directory$"
    rf"|{_CALLER}['‘]?(?P<called>[^'’\s:]+)['’]?: No such file or directory$"
    r"|.*: (?P<interpreter>/\S+): (?:bad interpreter: No such file|cannot execute: required file not found)"
    rf"|\S*python[\d.]*: No module named (?P<module>{_MODULES})$"
    rf"|(?:E +)?ModuleNotFoundError: No module named '(?P<imported>{_MODULES})'$"
    r"|(?:zsh:(?:\d+:)? command not found|fish: Unknown command): (?P<other_shell>[^\s:]+)$"
    rf"|{_SHELL}(?P<binary>[^\s:]+): cannot execute binary file"
)
_NETWORK = re.compile(
    r"(?:could not|couldn't|unable to|failed to|cannot) (?:resolve|look ?up) (?:host|proxy|address)"
    r"|temporary failure (?:in name resolution|resolving)|name or service not known|name does not resolve"
    r"|no address associated with hostname|nodename nor servname|\bEAI_AGAIN\b|\bENOTFOUND\b|\bno such host\b"
    r"|bad address '[^']*\.|bad hostname|network is unreachable|\bENETUNREACH\b|no route to host"
    rf"|failed to connect to {_ELSEWHERE}|could not connect to {_ELSEWHERE}[\w-]+\.[\w.-]+:\d"
    rf"|connectionpool\(host='{_ELSEWHERE}[^']*', port=\d+\): max retries exceeded|ECONNREFUSED {_ELSEWHERE}[\w.:]+\d"
    rf"|failed to fetch:? `?https?://{_ELSEWHERE}|(?:couldn't connect to|cannot reach) '?https?://{_ELSEWHERE}"
    rf"|could not reach host {_ELSEWHERE}|\bunknown ?host(?:exception:)? {_ELSEWHERE}[\w-]+\."
    r"|\blookup \S+ on \S+: |network (?:connectivity )?(?:was|is) disabled|lookup disabled by GOPROXY"
    r"|has no installation candidate|could not open lock file /var/lib/|directory /var/lib/apt/lists\S* is missing"
    r"|cannot connect to the docker daemon"
    r"|from proxy after CONNECT|CONNECT tunnel failed|tunnel connection failed|tunnel error: "
    r"|unable to locate package|no matching distribution found|CondaHTTPError: HTTP 000"
    r"|'remote-https?' is not a git command|unable to find remote helper",
    re.IGNORECASE,
)
_TOO_LONG = f": {os.strerror(errno.E2BIG)}"
_NO_OBSTACLE = re.compile(r"\s*>|.*\bassert\b|sudo: unable to resolve host")
"""A line of a test that pytest shows, which may speak of networks; and what keeps sudo from nothing."""
_NOT_RUN = re.compile(r": (?P<command>[^:]+): not found$|: (?P<file>[^:]+): [^:]+$")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ, _LONGEST = 400_000, 1000
"""Characters of an output, and of a line of it, that are searched: it may be hostile."""
_LINES, _SHOWN = 4, 200


def obstacle_in(output: str, is_work: IsWork) -> str:
    """Return the lines of an output that name obstacles: the first one of a network, and those of programs."""
    network: list[str] = []
    programs: list[str] = []
    for line in shorten(output, _READ).replace("\r", "\n").split("\n"):
        if len(line) > _LONGEST or _NO_OBSTACLE.match(line):
            continue
        if not network and _NETWORK.search(line):
            network.append(line.strip()[-_SHOWN:])
        elif line.endswith(_TOO_LONG) or (
            (match := _PROGRAM.match(line)) and not is_work(str(match[match.lastgroup or 0]))
        ):
            programs.append(line.strip()[-_SHOWN:])
    return "; ".join(dict.fromkeys([*network, *programs][:_LINES]))


def names_network(obstacle: str) -> bool:
    """Whether an obstacle is a network that is not there."""
    return _NETWORK.search(obstacle) is not None


def obstacle(result: CommandResult, is_work: IsWork) -> str:
    """Return what may have kept a verifier from running that reports by its exit code; "" if nothing has."""
    if result.ok:
        return ""
    if result.status is not ExecStatus.NONZERO:
        return f"it was ended: {result.status.value.replace('_', ' ')}"
    last = result.stderr.strip().rpartition("\n")[2]
    if not result.started:
        return last[-_SHOWN:]
    if reason := obstacle_in(f"{result.stderr}\n{result.stdout}", is_work):
        return reason
    if result.exit_code not in (126, 127):
        return ""
    not_run = _NOT_RUN.search(last)
    name = not_run and (not_run["command"] or os.path.join(".", not_run["file"]))
    return "" if name and is_work(name) else last[-_SHOWN:] or f"exit code {result.exit_code}"


def may_be_work(instruction: str, counts: Callable[[PurePosixPath], bool], *, path: str) -> IsWork:
    """Return the `IsWork` of an agent.

    Args:
        instruction: of its task; a command that it does not name is none of the agent's.
        counts: whether a file of the agent's is there for the verifier; its path may be relative.
        path: the variable PATH of the verifier.
    """

    def is_work(name: str) -> bool:
        if "/" in name:
            return counts(PurePosixPath(name))
        is_named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instruction, re.IGNORECASE)
        return bool(is_named) and any(counts(PurePosixPath(folder) / name) for folder in (path or _PATH).split(":"))

    return is_work


@contextmanager
def task_faults() -> Iterator[None]:
    """What a task asks for and a workspace does not have, such as a user, is its fault, and not the end of the run."""
    try:
        yield
    except SandboxUnavailable:
        raise
    except UserError as error:
        raise EnvError(str(error)) from error
