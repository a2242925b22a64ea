#!/bin/sh
# smolagents' LocalPythonExecutor, which runs the programs of its CodeAgent, beside Python itself.
# Package: smolagents 1.26.0. Guess: it refuses what it does not know, and all else has the value that Python gives it.
# Seen: valid programs end with other values and without an error. `return` and `break` inside `try` are exceptions for it, so an
# `except Exception` around them catches them: a function that returns 1 returns the handler's 2, and a loop goes on. `else` of a
# loop never runs. Decorators are ignored, property and lru_cache too. `*args` holds the named arguments once more. Defaults are
# made anew at each call. `f()[0] += 1` calls f twice. `[*range(2)]` is not unpacked. A function without `return` returns its last
# expression. A function that has the name of a builtin is never called.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check smolagents==1.26.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

from smolagents.local_python_executor import LocalPythonExecutor

assert version("smolagents") == "1.26.0", version("smolagents")
TWICE = "def twice(f):\n    def g(x):\n        return f(f(x))\n    return g\n"
PROGRAMS = (  # the program, its last expression, and the interpreter's value
    ("def f():\n    try:\n        return 1\n    except Exception:\n        return 2", "f()", 2),
    (
        "r = []\nfor i in range(3):\n    try:\n        if i == 1:\n            break\n"
        "    except Exception:\n        r.append('error')\n    r.append(i)",
        "r",
        [0, "error", 1, 2],
    ),
    ("r = 'no'\nfor i in range(3):\n    pass\nelse:\n    r = 'none left'", "r", "no"),
    (TWICE + "@twice\ndef g(x):\n    return x + 1", "g(1)", 2),
    ("def f(a, *rest):\n    return rest", "f(1, 2, 3)", (1, 2, 3)),
    ("def f(a, seen=[]):\n    seen.append(a)\n    return seen\nf(1)", "f(2)", [2]),
    ("n = [0]\ndef f():\n    n[0] += 1\n    return [1]\nf()[0] += 1", "n", [2]),
    ("", "[*range(2), *'ab']", [range(0, 2), "ab"]),
    ("def f(x):\n    if x:\n        y = 3", "f(1)", 3),
    ("def sum(x):\n    return 'mine'", "sum([1])", 1),
)
for program, last, seen in PROGRAMS:
    names = {}
    exec(program, names)
    right = eval(last, names)
    executor = LocalPythonExecutor(additional_authorized_imports=[])
    executor.send_tools({})
    value = executor(f"{program}\n{last}").output
    print(f"{last}: Python {right!r}, smolagents {value!r}")
    assert value == seen != right, (program, value)
EOP
