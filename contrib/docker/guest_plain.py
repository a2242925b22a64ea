"""Runs one snippet or session if the engine forbids namespaces: as another user, in a container of its own.

Run by path (`python -P -s -S guest_plain.py <folder of guest.py> <order> <descriptors...>`) by `plain.py`, which keeps
SETUID, SETGID, SETPCAP and KILL. Leftovers of the snippet end with the container.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any, NoReturn

sys.path.insert(0, sys.argv[1])
import guest  # type: ignore[import-not-found]
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_session as session  # type: ignore[import-not-found]
import guest_snippet as snippet  # type: ignore[import-not-found]

del sys.path[0]

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


def main() -> NoReturn:
    order, fds = json.loads(sys.argv[2]), [int(text) for text in sys.argv[3:]]
    try:
        snippet.add_site_builtins()
        guest.arrange_fds(fds)
        snippet.open_streams()
        os.environ.clear()
        os.environ.update(_ENVIRONMENT)
        sys.argv = [""]
        os.chdir("/tmp")
        _confine(order)
        session.serve() if "session" in order else snippet.run()
    except BaseException as failure:
        snippet.report_broken_setup(f"{type(failure).__name__}: {failure}")
    finally:
        os._exit(1)


def _confine(order: dict[str, Any]) -> None:
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
    main()
