"""Runs what was submitted as another user. The same file in every task that has one.

That user can neither read /tests nor write the reward, and what it leaves running is ended with the workspace.
"""

import subprocess

USER = {"user": 65534, "group": 65534, "extra_groups": []}
PATH = "/usr/local/bin:/usr/bin:/bin"


def run(*command, stdin="", cwd="/", env=None, seconds=20):
    """Return exit code and output of a command; (None, "") if it cannot be run in time."""
    pipes = {"input": stdin.encode(), "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, cwd=cwd, env={"PATH": PATH, **(env or {})}, timeout=seconds, **pipes, **USER)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")
