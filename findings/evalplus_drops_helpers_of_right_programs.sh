#!/bin/sh
# EvalPlus' sanitize, through which its HumanEval+ and MBPP+ answers go before they are run (rewards of code borrow it), on
# right programs for one small function.
# Package: evalplus 0.3.1 (its sanitizer alone), tree-sitter 0.26.1. Guess: prose around the program goes, the program stays.
# Seen: only imports, classes, assignments to one name, and functions that hold a `return` stay. A helper that fills a list or
# yields, any function under a decorator (@lru_cache, the asked one too), `LOW, HIGH = 0, 10`, an import inside `try`, and a
# loop that fills a table are dropped, so a right program ends in a NameError. Of two functions of the asked name the first
# stays: a model that writes a better version below is graded by its draft.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check tree-sitter==0.26.1 tree-sitter-python==0.25.0 \
        datasets==4.7.0 appdirs==1.4.4 wget==3.2 tempdir==0.7.1 termcolor==3.3.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps evalplus==0.3.1
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from evalplus.sanitize import sanitize

assert version("evalplus") == "0.3.1"
BODY = "return [x for part in items for x in (part if isinstance(part, list) else [part])]"
PLAIN = f"def flatten(items):\n    {BODY}\n"
FILL = "def fill(x, out):\n    for y in x:\n        fill(y, out) if isinstance(y, list) else out.append(y)\n\n\n"
YIELD = """def walk(x):
    if isinstance(x, list):
        for y in x:
            yield from walk(y)
    else:
        yield x


"""
CACHE = "from functools import lru_cache\n\n\n@lru_cache(None)\ndef same(x):\n    return x\n\n\n"
CHAIN = "try:\n    from itertools import chain\nexcept ImportError:\n    chain = None\n\n\n"
CHAINED = "return list(chain(*(x if isinstance(x, list) else [x] for x in items)))"
PROGRAMS = {
    "plain": (PLAIN, True),
    "in prose": (f"Here it is:\n\n```python\n{PLAIN}```\nThat is all.", True),
    "helper that fills": (f"{FILL}def flatten(items):\n    out = []\n    fill(items, out)\n    return out\n", False),
    "helper that yields": (f"{YIELD}def flatten(items):\n    return list(walk(items))\n", False),
    "helper with a cache": (CACHE + PLAIN.replace("[x for", "[same(x) for"), False),
    "two names at once": (f"LOW, HIGH = 0, 10\n\n\n{PLAIN}".replace("[part])]", "[part]) if LOW <= x < HIGH]"), False),
    "import inside try": (CHAIN + f"def flatten(items):\n    {CHAINED}\n", False),
    "better version below": (f"def flatten(items):\n    return items\n\n\n{PLAIN}", False),
}


def outcome(program):
    names = {}
    try:
        exec(program, names)
        return names["flatten"]([1, [2, 3]]) == [1, 2, 3]
    except NameError as error:
        return str(error)


for name, (program, right) in PROGRAMS.items():
    seen = outcome(sanitize(program, entrypoint="flatten"))
    print(f"{name}: as written {outcome(program) if name != 'in prose' else '-'}, sanitized {seen}")
    assert name == "in prose" or outcome(program) is True
    assert (seen is True) == right
EOP
