"""Calls functions that were submitted, as another user. The same file in every task that has one."""

import json

from programs import run

_CALLS = """
import json, os, runpy, sys
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
path, name = sys.argv[1:]
sys.path.insert(0, os.path.dirname(path))
module, values = runpy.run_path(path), []
for arguments in json.load(sys.stdin):
    try:
        values.append([module[name](*arguments)])
    except BaseException:
        values.append([])
os.write(out, json.dumps(values).encode())
os._exit(0)
"""


def call(path, name, arguments):
    """Return what a function of a file returns for each list of arguments, each value in a list; [] where it fails."""
    try:
        values = json.loads(run("python3", "-I", "-S", "-c", _CALLS, path, name, stdin=json.dumps(arguments))[1])
    except ValueError:
        values = None
    return values if isinstance(values, list) and len(values) == len(arguments) else [[]] * len(arguments)


def same(one, other):
    """Whether two values are equal as JSON, so that True is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
