#!/bin/sh
# The SQL tool and the SQL reward of skyrl-gym 0.4 on a table of six rows.
# Package: skyrl-gym 0.4.0. Guess: the model reads the rows that its query returns, in their order and under the names of their columns, and
# a right query is paid however the thoughts before it are worded.
# Seen: 1. The tool shows a set: two equal prices become one row, ORDER BY has no effect, and texts come in another order in each
# process (PYTHONHASHSEED). The columns are named 0 and 1. So a model that counts or ranks what it reads goes wrong.
# 2. The reward compares sets too: an unordered list pays in full for an ordered one, and DISTINCT for all rows.
# 3. A right query gets -1 when a thought names the tag <solution>, and after a tool's result when the reply has no <think> of
# its own; a fence of ```sql inside the tag gives 0.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check skyrl-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
PYTHONHASHSEED=0 "$PYTHON" - "$folder" <<'EOP'
import os
import sqlite3
import sys
from importlib.metadata import version

from skyrl_gym.envs.sql.env import SQLEnv, Text2SQLEnvConfig

assert version("skyrl-gym") == "0.4.0"
folder = os.path.join(sys.argv[1], "spider/database/shop")
os.makedirs(folder)
with sqlite3.connect(os.path.join(folder, "shop.sqlite")) as base:
    base.execute("CREATE TABLE goods (name TEXT, price INT)")
    base.executemany("INSERT INTO goods VALUES (?, ?)", [("a", 5), ("b", 3), ("c", 9), ("d", 3), ("e", 1), ("f", 7)])


def play(gold, *replies):
    env = SQLEnv(
        Text2SQLEnvConfig(db_path=sys.argv[1]), {"db_id": "shop", "reward_spec": {"ground_truth": gold}, "data": "spider"}
    )
    return [env.step(reply) for reply in replies][-1]


def rows(query):
    text = play(query, f"<think>Look.</think><sql>{query}</sql>")["observations"][0]["content"]
    header, *lines = text.split("<observation>")[1].split("\n<reminder>")[0].splitlines()
    return header.split(), [line.strip() for line in lines]


header, prices = rows("SELECT price FROM goods ORDER BY price DESC")
print(f"prices, highest first: columns {header}, rows {prices}")
assert header == ["0"] and len(prices) == 5 and prices != sorted(prices, reverse=True)
header, names = rows("SELECT name, price FROM goods ORDER BY price")
print(f"names, cheapest first: columns {header}, rows {names}")
assert header == ["0", "1"] and [int(name[-1]) for name in names] != sorted(int(name[-1]) for name in names)

ordered = "SELECT name FROM goods ORDER BY price DESC"
every = "SELECT price FROM goods"
think = "<think>Look.</think>"
for title, gold, replies, reward in (
    ("the same query", every, [f"{think}<solution>{every}</solution>"], 1.0),
    ("no order", ordered, [f"{think}<solution>SELECT name FROM goods</solution>"], 1.0),
    ("distinct prices", every, [f"{think}<solution>SELECT DISTINCT price FROM goods</solution>"], 1.0),
    ("the tag in a thought", every, [f"<think>It goes in <solution>.</think><solution>{every}</solution>"], -1.0),
    ("after a tool, thought", every, [f"{think}<sql>{every}</sql>", f"{think}<solution>{every}</solution>"], 1.0),
    ("after a tool, none", every, [f"{think}<sql>{every}</sql>", f"<solution>{every}</solution>"], -1.0),
    ("a fence", every, [f"{think}<solution>```sql\n{every}\n```</solution>"], 0.0),
):
    seen = play(gold, *replies)["reward"]
    print(f"{title}: reward {seen}")
    assert seen == reward
EOP
