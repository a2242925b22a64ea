"""What agents do to a workspace to be paid without doing the work. `forge-env check` tries each on every task."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from contrib.common.task_audit import KnownCheat
from envs.messages import call, say
from forge_env.core.types import Message


def read_scripts(path: Path) -> dict[str, str]:
    """Read a file of shell scripts: each follows a line "#: NAME", and begins with the lines above the first one."""
    shared, *parts = path.read_text(encoding="utf-8").split("\n#: ")
    pairs = (part.partition("\n") for part in parts)
    return {name: f"{shared}\n{script}" for name, _, script in pairs}


def known_cheats(scripts: Mapping[str, str]) -> tuple[KnownCheat, ...]:
    """What the lines "#= HOLE" and "#~ PATTERN" of scripts say; a script needs no pattern."""

    def line(script: str, mark: str) -> str:
        return next((line.removeprefix(mark) for line in script.splitlines() if line.startswith(mark)), "")

    return tuple(
        KnownCheat(name=name, hole=line(script, "#= "), script=script, pattern=line(script, "#~ "))
        for name, script in scripts.items()
    )


SCRIPTS = read_scripts(Path(__file__).with_name("cheats.sh"))
"""What it does -> the script."""
KNOWN = known_cheats(SCRIPTS)


def named_cheats(files: Sequence[str] = ()) -> Mapping[str, Sequence[Message]]:
    """Each cheat under a name that says what it does, as messages: the script, then the end.

    Args:
        files: paths that the task asks for; absolute, or relative to the folder of the shell.
    """
    paths = f"SUBMITTED={shlex.quote(' '.join(files))}\n"
    return {name: [call("shell", command=paths + script), say("done")] for name, script in SCRIPTS.items()}


def workspace_cheats(files: Sequence[str] = ()) -> list[Sequence[Message]]:
    return list(named_cheats(files).values())
