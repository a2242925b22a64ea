"""Runs what was submitted as another user, compares here, and writes the reward. The same file in every task.

That user can neither read /tests nor write the reward, and what it leaves running is ended with the workspace.
"""

import json
import subprocess

_CALLS = """
import importlib.util, json, os, sys
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
path, name = sys.argv[1:]
sys.path.insert(0, os.path.dirname(path))
spec = importlib.util.spec_from_file_location("submitted", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
values = []
for arguments in json.load(sys.stdin):
    try:
        values.append([getattr(module, name)(*arguments)])
    except BaseException:
        values.append([])
os.write(out, json.dumps(values).encode())
os._exit(0)
"""


def run(*command, stdin="", cwd="/", env=None, seconds=20):
    """Return exit code and output of a command; (None, "") if it cannot be run in time."""
    try:
        done = subprocess.run(
            command,
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            cwd=cwd,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
            user=65534,
            group=65534,
            extra_groups=[],
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def call(path, name, arguments):
    """Return what a function of a file returns for each list of arguments, each value in a list; [] where it fails."""
    _, output = run("python3", "-I", "-S", "-c", _CALLS, path, name, stdin=json.dumps(arguments))
    try:
        values = json.loads(output)
    except ValueError:
        return [[]] * len(arguments)
    return values if isinstance(values, list) and len(values) == len(arguments) else [[]] * len(arguments)


def same(one, other):
    """Whether two values are equal as JSON, so that True is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def read(path):
    """Return the text of a submitted file; "" if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(2**20)
    except OSError:
        return ""


def reward(value, **more):
    """Write the reward as JSON."""
    with open("/logs/verifier/reward.json", "w") as file:
        json.dump({"reward": float(value), **more}, file)
