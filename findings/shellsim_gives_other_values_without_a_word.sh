#!/bin/sh
# shellsim, a simulated shell for rollouts, on commands that agents write each day, beside what POSIX and GNU define for them.
# Package: shellsim 0.1.39. Guess: a command gives the text that a real shell gives, or it is refused in sight, as its page says
# ("Unsupported syntax, options [...] fail visibly and are included in structured results").
# Seen: each command below ends with status 0, no word on standard error and an empty `unsupported`, and its text is another one.
# $(<file) is empty; awk's numbers have 16 digits in place of 6, "12abc" is 0, %.3g and %c are not applied; date ignores -d and
# prints 2025; diff has no line numbers, so no patch can be made from it; grep -r prints absolute paths; tr -c changes the wrong
# letters; sed writes the U of \U; od prints bare digits. A policy learns a shell that nobody has.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check shellsim==0.1.39
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

import shellsim

assert version("shellsim") == "0.1.39"
SAME = None
for command, real, simulated in (
    ("printf 'b\\na\\n' | sort", "a\nb\n", SAME),
    ("x=$(cat f); echo $((x + 1))", "6\n", SAME),
    ("x=$(<f); echo $((x + 1))", "6\n", "1\n"),
    ("awk 'BEGIN { x = 1 / 3; print x }'", "0.333333\n", "0.3333333333333333\n"),
    ("awk 'BEGIN { printf \"%d\\n\", \"12abc\" }'", "12\n", "0\n"),
    ("awk 'BEGIN { printf \"%.3g\\n\", 1234567 }'", "1.23e+06\n", "1234567\n"),
    ("awk 'BEGIN { printf \"%c\\n\", 65 }'", "A\n", "6\n"),
    ("date -u -d '2024-02-28 +2 days' +%F", "2024-03-01\n", "2025-01-01\n"),
    ("diff g h", "1d0\n< a\n", "< a\n"),
    ("grep -rn 5 .", "./f:1:5\n", "/project/f:1:5\n"),
    ("printf 'a-b\\n' | tr -c 'a-z\\n' x", "axb\n", "x-xx"),
    ("printf 'abc\\n' | tr 'a-c' 'x'", "xxx\n", SAME),
    ("echo hello | sed 's/.*/\\U&/'", "HELLO\n", "Uhello\n"),
    ("printf 'abc' | od -An -tx1", " 61 62 63\n", "616263\n"),
):
    environment = shellsim.Context().Environment(cpu=100_000_000)
    assert environment.run("mkdir /project").returncode == 0
    for name, text in (("f", "5\n"), ("g", "a\nb\n"), ("h", "b\n")):
        environment.write_file(f"/project/{name}", text)
    result = environment.run(f"cd /project; {command}")
    print(f"{command}: {result.stdout.decode()!r}, a real shell: {real!r}")
    assert result.stdout.decode() == (real if simulated is SAME else simulated), result
    assert result.returncode == (1 if command.startswith("diff") else 0), result
    assert not result.stderr and not result.unsupported and not result.unsupported_commands, result
EOP
