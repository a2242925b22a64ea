"""Runs one snippet or session of the "subprocess" backend, which isolates nothing: see `insecure.py`.

Run by path (`python -P -s -S guest_insecure.py <order> <descriptors...>`). Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest  # type: ignore[import-not-found]
import guest_files as files  # type: ignore[import-not-found]
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_session as session  # type: ignore[import-not-found]
import guest_snippet as snippet  # type: ignore[import-not-found]

del sys.path[0]


def serve(order: dict[str, Any], fds: list[int], confine: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Run what the descriptors bring, in the folder of the order, after `confine` has limited this process."""
    try:
        sys.argv = [""]
        os.chdir(order["folder"])
        files.HOME = order["folder"]
        os.environ.update(PATH="/usr/bin:/bin", HOME=order["folder"], LANG="C.UTF-8")
        snippet.add_site_builtins()
        guest.arrange_fds(fds)
        snippet.open_streams()
        confine(order)
        session.serve() if "session" in order else snippet.run()
    except BaseException as failure:
        snippet.report_broken_setup(f"{type(failure).__name__}: {failure}")
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), [*map(int, sys.argv[2:])], lambda order: kernel.limit_resources(order["limits"]))
