#!/bin/sh
set -e
cd /app
python3 - <<'END'
import collections, json
counts = collections.Counter(line.split()[3] for line in open("access.log"))
json.dump(counts, open("counts.json", "w"))
END
