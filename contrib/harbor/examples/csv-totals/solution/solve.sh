#!/bin/sh
set -e
cat > /app/totals.py <<'END'
import collections
import csv
import sys

totals = collections.Counter()
for row in csv.DictReader(sys.stdin):
    totals[row["group"]] += int(row["amount"])
for group in sorted(totals):
    print(group, totals[group])
END
