"""A process that has used Monarch ends without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLOW = """
import sys
from pathlib import Path
from forge_env.runtime.process.monarch_files import open_monarch, remove_what_monarch_left
open_monarch(Path(sys.argv[1]), "")
import monarch.actor
from monarch._src.actor import actor_mesh

class Late:
    # What a machine under load makes of it: it takes longer than one second.
    def __init__(self, future):
        self.future = future

    def get(self, timeout=None):
        if timeout is not None and timeout < 5:
            raise TimeoutError
        return self.future.get(timeout)

shut_down = actor_mesh.shutdown_context

def shutdown_context(host_timeout=None):
    started = actor_mesh._shutdown_claimed
    future = shut_down(host_timeout)
    return future if started else Late(future)

actor_mesh.shutdown_context = monarch.actor.shutdown_context = shutdown_context
remove_what_monarch_left()
"""


def test_a_slow_end_of_monarch_is_waited_for_and_leaves_no_trace(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(tmp_path)], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout + done.stderr == ""
