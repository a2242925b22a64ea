#!/bin/sh
set -e
cat > /app/sort_lines.py <<'END'
import sys

lines = [line for line in sys.stdin.read().splitlines() if line]
for line in sorted(lines, key=lambda line: (len(line), line)):
    print(line)
END
