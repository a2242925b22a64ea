"""Which Harbor tasks cannot run without a network: what their scripts fetch, as far as it can be read in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from contrib.harbor.config import HarborTask, Step
from contrib.harbor.policies import Consent, asked_for_verifier
from contrib.workspaces.images.dockerfile import join_lines, read_instructions
from forge_env.core.errors import UserError

_BETWEEN = re.compile(r"&&|\|\||[;|&(){}`]|\$\(|\b(?:if|then|else|do|while|until)\b|!")
_BEFORE = re.compile(
    r"(?:sudo|exec|time|command|nohup|env|timeout \S+|(?:ba)?sh -\w*c|[A-Za-z_]\w*=(?:\"[^\"]*\"|'[^']*'|\S*))\s+[\"']?"
)
_FLAGS = r"(?:-\S+ (?:[\w:]+=\S+ )?)*"
_INSTALLS = re.compile(
    rf"(?:\S*/)?(?:(?:apt|apt-get|apk|dnf|yum|microdnf|conda|mamba) {_FLAGS}(?:update|install|add|upgrade)"
    rf"|(?:(?:\S*python[\d.]*|uv) {_FLAGS})?pip[\d.]* {_FLAGS}(?:install|download)|pipx (?:install|run)"
    rf"|uvx|uv {_FLAGS}(?:sync|add|lock|tool (?:install|run))|poetry install"
    r"|uv run (?:.*(?:--with|-w)|(?:-\S+ (?:\d\S* )?)*\S+\.py)"
    rf"|(?:npm|pnpm|yarn|bun) {_FLAGS}(?:install|i|ci|add)|npx"
    rf"|(?:cargo|gem|bundle|composer) {_FLAGS}(?:install|fetch)"
    r"|go (?:get|install|mod download)|docker pull|(?:huggingface-cli|hf) download)(?=[ ='\"])"
)
_READS = re.compile(r"(?:\S*/)?(?:curl|wget|git (?:-\S+ )*(?:clone|ls-remote|fetch)|aria2c)(?= )")
_URL = re.compile(r"(?:https?|git|ftp)://(?:[^/\s\"'@]*@)?(\[[^]]*\]|[^/\s\"':]+)")
_LOCAL = re.compile(r"localhost|127(?:\.\d+){3}|\[::1\]|0\.0\.0\.0|\$.*|\w+")
"""Hosts of the machine itself, and names without a dot, which are services beside it."""
_FROM_FILES = re.compile(r" --no-index\b| --offline\b| --no-download\b")
_SHEBANG = re.compile(rb"#!.*\b(?:sh|bash|dash)\b")
_SHOWN = 3


def require_consent(tasks: Sequence[HarborTask], consent: Consent) -> None:
    """Raise UserError if tasks need a network, and the user has not consented to one."""
    needs = [] if consent else [(task.name, need) for task in tasks if (need := network_need(task))]
    if needs:
        texts = [f"{name} ({need})" for name, need in needs[:_SHOWN]]
        more = f" and {len(needs) - _SHOWN} more" if len(needs) > _SHOWN else ""
        raise UserError(
            f"{len(needs)} of {len(tasks)} tasks need a network, which tasks do not have unless you consent: "
            f"{', '.join(texts)}{more}; give tasks the network that they declare by the option network=declared of the "
            "environment, or leave these tasks out"
        )


def network_need(task: HarborTask) -> str:
    """Return what of a task needs a network that the task declares, or that its image is built with; "" for nothing."""
    return next(_needs(task), "")


def verifier_fetches(task: HarborTask) -> str:
    """Return what a script of the verifier fetches, whatever the task declares; "" for nothing."""
    return next((line for step in task.steps for line in _fetches(task, task.part(step, "tests"))), "")


def _needs(task: HarborTask) -> Iterator[str]:
    environment = task.config.environment
    if environment.docker_image is None:
        yield from _fetches_in_build(task, task.environment_folder)
    for step in task.steps:
        yield from _needs_of_step(task, step)
    if task.agent_network()[0] != "no-network":
        for server in environment.mcp_servers:
            if server.transport != "stdio":
                yield f"the MCP server {server.name!r} is at {server.url}"


def _needs_of_step(task: HarborTask, step: Step | None) -> Iterator[str]:
    verifier, tests = task.verifier(step), task.part(step, "tests")
    if task.verifier_place(step) == "separate" and not (verifier.environment and verifier.environment.docker_image):
        yield from _fetches_in_build(task, tests)
    if asked_for_verifier(task, step)[0] != "no-network":
        yield from _fetches(task, tests)
    if task.agent_network()[0] != "no-network":
        for part in ("solution", "workdir"):
            yield from _fetches(task, task.part(step, part))


def _fetches_in_build(task: HarborTask, folder: Path) -> Iterator[str]:
    path = folder / "Dockerfile"
    if path.is_file():
        for instruction in read_instructions(path):
            if instruction.name == "RUN" and (call := fetching_call(instruction.rest)):
                yield _sentence(task, path, instruction.line, call)


def _fetches(task: HarborTask, folder: Path) -> Iterator[str]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and _is_script(path)):
        for number, line in join_lines(path.read_text(errors="replace").splitlines()):
            if call := fetching_call(line):
                yield _sentence(task, path, number, call)


def _is_script(path: Path) -> bool:
    if path.suffix in (".sh", ".bash"):
        return True
    with path.open("rb") as file:
        return not path.suffix and bool(_SHEBANG.match(file.read(80)))


def _sentence(task: HarborTask, path: Path, line: int, call: str) -> str:
    return f"line {line} of {path.relative_to(task.folder)} calls {call}"


def fetching_call(line: str) -> str:
    """Return the program of a command line that fetches something from elsewhere, with its arguments; or "".

    >>> fetching_call("cd /app && apt-get -y install curl")
    'apt-get -y install'
    >>> fetching_call("curl -s http://localhost:8000/health | grep ok")
    ''
    """
    for part in _BETWEEN.split(line):
        command = " ".join(part.split()) + " "
        while match := _BEFORE.match(command):
            command = command[match.end() :]
        if (match := _INSTALLS.match(command)) and not _FROM_FILES.search(command):
            return match[0]
        if (match := _READS.match(command)) and not all(_LOCAL.fullmatch(host) for host in _URL.findall(command)):
            return match[0]
    return ""
