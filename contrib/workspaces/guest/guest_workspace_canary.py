"""What a command of a workspace can reach, tried out by a fork of pid 1 under the same confinement, at a self-test.

Standard library only; imported by `guest_workspace_init.py`, never by the host, which judges the observations.
"""

from __future__ import annotations

import json
import mmap  # noqa: F401  # for a canary: a workspace cannot import it any more
from typing import Any


def look(facts: dict[str, Any]) -> str:
    """Run the canaries of the owner, `facts["code"]`, which define `look`, and return its value as JSON."""
    namespace: dict[str, Any] = {}
    exec(facts["code"], namespace)
    return json.dumps(namespace["look"](*facts["arguments"]))
