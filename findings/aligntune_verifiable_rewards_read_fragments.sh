#!/bin/sh
# AlignTune's verifiable rewards for JSON, SQL and programs, on replies as models write them.
# Packages: aligntune 0.1.28 (its rewards alone; torch and transformers, which it imports beside them, are not run),
# jsonschema 4.26.0, sqlglot 30.30.0, sympy 1.14.0.
# Guess: a reply that fits the schema, returns the expected rows or passes the tests is paid, with and without a fence,
# and others are not.
# Seen: 1. JSON: outside of a fence the first pair of braces without braces in it is read. So a right object with an
# object in it earns 0, and one that does not fit is paid if an inner one does. 2. SQL: with `execute` the expected
# result is never looked at: each query that runs is paid. Without it a word of prose is SQL. A right query in a fence
# earns 0. 3. Programs: the last fence is the program. A right function with an example of its use behind it earns 0.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check jsonschema==4.26.0 numpy==2.4.6 \
        sqlglot==30.30.0 sympy==1.14.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps aligntune==0.1.28
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
import sys
from importlib.metadata import distribution, version
from types import ModuleType

assert version("aligntune") == "0.1.28"
root = distribution("aligntune")
for name in ("torch", "transformers"):  # the file of its learned rewards imports names of them
    module = sys.modules[name] = ModuleType(name)
    module.__getattr__ = lambda key: object
for name in ("aligntune", "aligntune.rewards", "aligntune.utils"):  # their first files import trainers
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = [str(root.locate_file(name.replace(".", "/")))]

from aligntune.rewards.core import RewardConfig, RewardType
from aligntune.rewards.verifiable import (
    CodeExecutionVerifiableReward,
    JSONSchemaVerifiableReward,
    SQLVerifiableReward,
)


def reward(kind, **params):
    return kind(RewardConfig(reward_type=next(iter(RewardType)), params=params, device="cpu"))


def check(title, judge, reply, reference, pay):
    seen = judge.compute(reply, reference)
    print(f"{title}: {seen}")
    assert seen == pay


types = {"user": {"type": "object"}, "age": {"type": "integer"}}
person = {"type": "object", "required": ["user", "age"], "properties": types}
types = {"city": {"type": "string"}}
city = {"type": "object", "required": ["city"], "properties": types, "additionalProperties": False}
right = '{"user": {"name": "Ann"}, "age": 3}'
schemas = reward(JSONSchemaVerifiableReward)
check("JSON, an object in an object", schemas, right, json.dumps(person), 0.0)
check("JSON, the same in a fence", schemas, f"```json\n{right}\n```", json.dumps(person), 1.0)
check("JSON, a flat object", schemas, '{"city": "Oslo"}', json.dumps(city), 1.0)
check("JSON, a wrong object around it", schemas, '{"error": {"city": "Oslo"}}', json.dumps(city), 1.0)

running = reward(SQLVerifiableReward, execute=True)
check("SQL, the expected row", running, "SELECT 1", "[(1,)]", 1.0)
check("SQL, another row", running, "SELECT 2", "[(1,)]", 1.0)
check("SQL, in a fence", running, "```sql\nSELECT 1\n```", "[(1,)]", 0.0)
check("SQL, a word", reward(SQLVerifiableReward), "Hello", None, 1.0)

program = "```python\ndef add(a, b):\n    return a + b\n```"
example = "\nFor example:\n```python\nprint(1 + 2)\n```"
tests = ["assert add(1, 2) == 3"]
programs = reward(CodeExecutionVerifiableReward)
check("a program", programs, program, tests, 1.0)
check("a program and an example", programs, program + example, tests, 0.0)
EOP
