"""Attacks that watch what the host does with the files it shares, or use what no limit of memory or time counts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from tests.sandboxes.attacks import PRELUDE, Attack, attacks

_CALL = """
import json, sys
print(json.dumps(f(json.loads(sys.argv[1]))))
"""
# The folder of the interpreter is the host's, and shared by every snippet. What opens a file there stands for the host.
_WATCH = """
import select, sys
FOLDER = os.path.dirname(os.__file__)
def events(watching):
    with open(os.__file__, "rb") as file: file.read(1)
    return bool(select.select([watching], [], [], 1)[0])
"""


def gets_through(attack: Attack, facts: dict[str, Any]) -> bool:
    """Return whether all that has to get through does, in a plain process of this machine."""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + attack.code + _CALL, json.dumps(facts)],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode == 0, result.stderr
    return set(attack.unconfined) <= set(json.loads(result.stdout))


ATTACKS = [replace(attack, control=partial(gets_through, attack)) for attack in attacks("watching", _WATCH)]
