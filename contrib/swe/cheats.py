"""What agents do to a repository to be paid without solving its problem, beside what `contrib.workspaces.env.cheats`
lists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from contrib.swe.rows import Instance
from contrib.workspaces.env.cheats import KNOWN, known_cheats, named_cheats, read_scripts
from envs.messages import call, say
from forge_env.core.types import Message

_CHANGED = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)
_SCRIPTS = read_scripts(Path(__file__).with_name("cheats.sh"))
KNOWN_CHEATS = (*KNOWN, *known_cheats(_SCRIPTS))


def named_cheats_of(instance: Instance) -> Mapping[str, Sequence[Message]]:
    """Each cheat under a name that says what it does, as messages: a script, then the end."""
    tests = f"set -- {shlex.join(sorted({test.partition('::')[0] for test in instance.fail_to_pass}))}\n"
    paths = [f"{instance.workdir}/{path}" for path in _CHANGED.findall(instance.patch)]
    own = {name: [call("shell", command=tests + script), say("done")] for name, script in _SCRIPTS.items()}
    return {**named_cheats(paths), **own}
