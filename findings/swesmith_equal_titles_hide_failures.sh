#!/bin/sh
# SWE-smith's parser of Mocha's reports, which 63 of its profiles of JavaScript and TypeScript use, on two suites in which a
# test has the same title. (106 use its parser for Jest, and SWE-bench has one; both name tests by their titles, too.)
# Packages: swesmith 0.0.9, swebench 4.1.0 (with 5.0.2 its profiles do not import), mocha 11.7.5 of npm, run by Node.
# Guess: tests are known by suite and title, or the worse of two statuses is kept.
# Seen: the title alone is the name, and the last one wins. A failed test is PASSED if a later suite has one of that title that
# passes, though Mocha ends with 1 and says "1 failing". So a solution that breaks "metres: reads a number" keeps "feet: reads a
# number", and is resolved. In the other order the passed one is FAILED. The suite of a failed test becomes a failed test of its
# own.
# PYTHON may name an interpreter that has the two Python packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "swesmith[validate]==0.0.9" swebench==4.1.0
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder"
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund mocha@11.7.5 >/dev/null
mkdir test
cat >test/units.js <<'EOP'
const assert = require("node:assert");
const broken = process.env.BROKEN;
describe("metres", () => {
  it("reads a number", () => assert.notEqual(broken, "metres"));
});
describe("feet", () => {
  it("reads a number", () => assert.notEqual(broken, "feet"));
});
EOP
for broken in nothing metres feet; do
    BROKEN=$broken node_modules/.bin/mocha --no-color >"$broken.txt" 2>&1 || echo "mocha ends with $? for broken $broken"
done
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version
from pathlib import Path

from swebench.harness.constants import FAIL_TO_PASS, PASS_TO_PASS
from swebench.harness.grading import get_resolution_status
from swesmith.harness.grading import get_eval_tests_report
from swesmith.profiles.javascript import parse_log_mocha

assert version("swesmith") == "0.0.9" and version("swebench") == "4.1.0"
statuses = {broken: parse_log_mocha(Path(f"{broken}.txt").read_text()) for broken in ("nothing", "metres", "feet")}
required = {FAIL_TO_PASS: [], PASS_TO_PASS: list(statuses["nothing"])}
for broken, status in statuses.items():
    print(f"broken {broken}: {status}, {get_resolution_status(get_eval_tests_report(status, required))}")
assert "1 failing" in Path("metres.txt").read_text()
assert statuses["nothing"] == {"reads a number": "PASSED"}
assert statuses["metres"] == {"reads a number": "PASSED", "metres": "FAILED"}
assert statuses["feet"] == {"reads a number": "FAILED", "feet": "FAILED"}
assert get_resolution_status(get_eval_tests_report(statuses["metres"], required)) == "RESOLVED_FULL"
EOP
