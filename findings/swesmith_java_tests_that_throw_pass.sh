#!/bin/sh
# SWE-smith's parser of Maven's test logs, which 67 of its profiles of Java repositories use.
# Packages: swesmith 0.0.9, swebench 4.1.0 (with 5.0.2 its profiles do not import). The log is what Surefire 3.2.5 with JUnit
# 5.14.1 printed for three tests under the options of those profiles. Guess: a test that throws an exception has failed, as one
# has whose assertion fails.
# Seen: only "<<< FAILURE!" is a failure. A test that throws ends with "<<< ERROR!", and is PASSED. So a bug that raises (a null
# pointer, an index out of range) breaks no test, and is no task; and a solution that makes a required test throw is resolved.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "swesmith[validate]==0.0.9" swebench==4.1.0
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder"
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from swebench.harness.constants import FAIL_TO_PASS, PASS_TO_PASS
from swebench.harness.grading import get_resolution_status
from swesmith.harness.grading import get_eval_tests_report
from swesmith.profiles import registry

assert version("swesmith") == "0.0.9" and version("swebench") == "4.1.0"
LOG = """\
[INFO] -------------------------------------------------------
[INFO]  T E S T S
[INFO] -------------------------------------------------------
[INFO] Running UnitsTest
[ERROR] Tests run: 3, Failures: 1, Errors: 1, Skipped: 0, Time elapsed: 0.134 s <<< FAILURE! -- in UnitsTest
[ERROR] UnitsTest.passes -- Time elapsed: 0.044 s
[ERROR] UnitsTest.raises -- Time elapsed: 0.015 s <<< ERROR!
java.lang.NullPointerException: Cannot invoke "String.length()" because "text" is null
	at UnitsTest.raises(UnitsTest.java:6)

[ERROR] UnitsTest.fails -- Time elapsed: 0.008 s <<< FAILURE!
org.opentest4j.AssertionFailedError: expected: <1> but was: <2>
	at UnitsTest.fails(UnitsTest.java:5)

[INFO] Results:
[ERROR] Failures:
[ERROR]   UnitsTest.fails:5 expected: <1> but was: <2>
[ERROR] Errors:
[ERROR]   UnitsTest.raises:6 NullPointer Cannot invoke "String.length()" because "text" is null
[ERROR] Tests run: 3, Failures: 1, Errors: 1, Skipped: 0
[INFO] BUILD FAILURE
"""
(profile,) = (profile for profile in registry.values() if profile.repo == "gson")
statuses = profile.log_parser(LOG)
print(statuses)
assert statuses == {"UnitsTest.passes": "PASSED", "UnitsTest.raises": "PASSED", "UnitsTest.fails": "FAILED"}
for broken, resolved in (("raises", "RESOLVED_FULL"), ("fails", "RESOLVED_NO")):
    required = {FAIL_TO_PASS: [f"UnitsTest.{broken}"], PASS_TO_PASS: ["UnitsTest.passes"]}
    seen = get_resolution_status(get_eval_tests_report(statuses, required))
    print(f"a task that asks for {broken} and passes: {seen}")
    assert seen == resolved
EOP
