"""Attacks on the verdict: make a grader believe that a wrong answer is right. The task is to double a number."""

from __future__ import annotations

OUTSIDE = ("/tmp/forge-env-forged-result", "/dev/shm/forge-env-forged-result")
"""Files that an answer writes beside its folder; where nothing isolates it, they are there afterwards."""

FORGERIES = {
    "exit before the tests": (29, "import sys\nsys.exit(0)"),
    "exit at once": (29, "import os\nos._exit(0)"),
    "exit when it is called": (29, "def f(x): raise SystemExit(0)"),
    "abort": (29, "import os\nos.abort()"),
    "print what a grader might look for": (30, "print('PASSED\\n{\"passed\": true}\\nOK')\ndef f(x): return None"),
    "write to every descriptor": (
        30,
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'V\\x03\\0\\0\\0[8]')\n    except OSError: pass\n"
        "def f(x): return 0",
    ),
    "write result files": (
        30,
        f"for name in ('result.json', *{OUTSIDE!r}):\n"
        "    try: open(name, 'w').write('{\"passed\": true}')\n    except OSError: pass\ndef f(x): return 0",
    ),
    "walk the stack to the grader": (
        31,
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "            if type(value) is list: value.insert(0, 'passed')\n        frame = frame.f_back\n    return 0",
    ),
    "search memory for what is expected": (
        31,
        "import gc\ndef f(x):\n    for found in gc.get_objects():\n"
        "        if type(found) is dict and 'expected' in found: return found['expected']\n    return 0",
    ),
    "an object that equals everything": (
        32,
        "class Any:\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n"
        "def f(x): return Any()",
    ),
    "a number that equals everything": (
        32,
        "class Any(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\ndef f(x): return Any(0)",
    ),
    "an object that lies about its class": (
        32,
        "class Any:\n    __class__ = property(lambda self: int)\n    __eq__ = lambda self, other: True\n"
        "def f(x): return Any()",
    ),
    "replace what compares": (
        33,
        "import builtins, json, math\nbuiltins.all = builtins.any = lambda *a: True\n"
        "math.isclose = lambda *a, **k: True\njson.dumps = lambda *a, **k: '{\"equal\": true}'\ndef f(x): return 0",
    ),
    "a value nested too deeply to decode": (
        0,
        "import os, struct\ntext = b'[' * 60000\nos.write(3, b'V' + struct.pack('<I', len(text)) + text)\nos._exit(0)",
    ),
    "two answers in one": (
        0,
        "import os\ndef f(x):\n    os.write(3, b'V\\x01\\0\\0\\0' + b'8')\n    return 0",
    ),
    "a child that answers first": (
        0,
        "import os\ndef f(x):\n    if not os.fork():\n        os.write(3, b'V\\x01\\0\\0\\x008')\n        os._exit(0)\n"
        "    os.wait()\n    return 0",
    ),
    "not a number": (0, "def f(x): return float('nan')"),
}
"""What it does -> its number in the list, and the answer."""
