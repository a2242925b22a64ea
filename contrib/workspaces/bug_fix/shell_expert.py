"""The expert of bug_fix for mini-swe-agent, which writes one command of the shell in a block of text.

recipes/135m_mini_swe_agent.yaml names it as --warmup.expert.
"""

from __future__ import annotations

import re

from contrib.workspaces.bug_fix.repository import find_repair
from envs.messages import say
from forge_env.core.errors import EnvError
from forge_env.core.types import Message

_OUTPUT = re.compile(r"<output>\n(.*?)</output>", re.DOTALL)
_LINE = re.compile(r" *\d+\t(.*)")


def expert(messages: list[Message]) -> Message:
    """Read the module with the numbers of its lines, replace the wrong line, run the tests, submit.

    Raises:
        EnvError: the file has no fault that is known.
    """
    question, *results = [message["content"] for message in messages if message["role"] == "user"]
    module = re.findall(r"(\w+)\.py", question)[0]
    if not results:
        return _command(f"cat -n {module}.py")
    if len(results) == 1:
        return _command(_repair(f"{module}.py", results[0]))
    if len(results) == 2:
        return _command(f"python test_{module}.py")
    return _command("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def _repair(path: str, result: str) -> str:
    """A command of sed that writes the wrong line anew, with its indentation behind a backslash."""
    match = _OUTPUT.search(result)
    lines = _LINE.findall(match[1] if match else "")
    text = "\n".join(lines) + "\n"
    repair = find_repair(text)
    if repair is None:
        raise EnvError(f"{path} has no fault that the expert knows")
    new_lines = text.replace(repair.old, repair.new).split("\n")
    number, line = next((at, new) for at, (new, old) in enumerate(zip(new_lines, lines, strict=False), 1) if new != old)
    return f'sed -i "{number}c\\{line}" {path}'


def _command(text: str) -> Message:
    return say(f"```mswea_bash_command\n{text}\n```")
