"""Runs one snippet or session if the engine forbids namespaces: as another user, in a container of its own.

Run by path (`python -P -s -S guest_plain.py <folder of guest.py> <order> <descriptors...>`) by `agent.py`, which keeps
SETUID, SETGID, SETPCAP and KILL. Leftovers of the snippet end with the container.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])
import guest_insecure as alone  # type: ignore[import-not-found]
import guest_kernel as kernel  # type: ignore[import-not-found]

del sys.path[0]

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


def _confine(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    lockdown = kernel.Lockdown(base64.b64decode(order["filter"]))
    kernel.be_killed_first()
    kernel.limit_resources(order["limits"])
    user = order["user"]
    kernel.empty_bounding_set()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    lockdown.apply()


if __name__ == "__main__":
    alone.serve(json.loads(sys.argv[2]), [*map(int, sys.argv[3:])], _confine)
