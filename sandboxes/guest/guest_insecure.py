"""Runs one snippet or session of the "subprocess" backend, which isolates nothing: see `insecure.py`.

Run by path (`python -P -s -S guest_insecure.py <order> <descriptors...>`). Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest  # type: ignore[import-not-found]
import guest_files as files  # type: ignore[import-not-found]
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_session as session  # type: ignore[import-not-found]
import guest_snippet as snippet  # type: ignore[import-not-found]

del sys.path[0]


def main() -> NoReturn:
    order, fds = json.loads(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    try:
        sys.argv = [""]
        os.chdir(order["folder"])
        files.HOME = order["folder"]
        snippet.add_site_builtins()
        guest.arrange_fds(fds)
        snippet.open_streams()
        kernel.limit_resources(order["limits"])
        session.serve() if "session" in order else snippet.run()
    except BaseException as failure:
        snippet.report_broken_setup(f"{type(failure).__name__}: {failure}")
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
