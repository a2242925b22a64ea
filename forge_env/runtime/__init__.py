"""Processes, actors and the weight store. Only this package uses Monarch; `import forge_env` does not load it.

The settings below must be made before Monarch is imported for the first time, here and in every process it starts.
"""

import atexit
import getpass
import os
from pathlib import Path


def remove_monarch_log() -> None:
    """Remove the log file that Monarch creates under /tmp/USER when it is imported."""
    folder = Path("/tmp") / getpass.getuser()
    try:
        if folder.lstat().st_uid != os.geteuid() or folder.is_symlink():
            return  # another user's folder of that name
    except OSError:
        return
    (folder / f"monarch_log_{os.environ['MONARCH_LOG_SUFFIX']}.log").unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        pass


# A log name of our own, so that the log can be removed with the run, or at the exit of a process without a run.
if "MONARCH_LOG_SUFFIX" not in os.environ:
    os.environ["MONARCH_LOG_SUFFIX"] = f"forge_{os.getpid()}"
    atexit.register(remove_monarch_log)
os.environ.setdefault("HYPERACTOR_MESH_ENABLE_LOG_FORWARDING", "0")
# Weights may travel as one message.
os.environ.setdefault("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", str(910 * 2**30))
