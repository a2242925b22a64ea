"""Runs one snippet or session without namespaces: as this user, or in a container of its own as another one.

Run by path (`python -P -s -S guest_plain.py <folder of guest.py> <order> <descriptors...>`). An order of `insecure.py`
has limits only. One of `agent.py`, which keeps SETUID, SETGID, SETPCAP and KILL, has a user and a filter, too: what the
snippet leaves behind ends with the container. Standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any, NoReturn

sys.path.insert(0, sys.argv[1])
import guest  # type: ignore[import-not-found]
import guest_files as files  # type: ignore[import-not-found]
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_session as session  # type: ignore[import-not-found]
import guest_snippet as snippet  # type: ignore[import-not-found]

del sys.path[0]

_PATHS = {False: "/usr/bin:/bin", True: "/usr/local/bin:/usr/bin:/bin"}


def _serve(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Run what the descriptors bring, in the folder of the order."""
    try:
        folder, is_confined = order["folder"], "filter" in order
        sys.argv = [""]
        os.chdir(folder)
        files.HOME = folder
        if is_confined:
            os.environ.clear()
        os.environ.update(PATH=_PATHS[is_confined], HOME=folder, LANG="C.UTF-8")
        snippet.add_site_builtins()
        guest.arrange_fds(fds)
        snippet.open_streams()
        if is_confined:
            _confine(order)
        else:
            kernel.limit_resources(order["limits"])
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
    _serve(json.loads(sys.argv[2]), [*map(int, sys.argv[3:])])
