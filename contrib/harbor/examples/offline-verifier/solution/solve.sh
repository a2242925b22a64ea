#!/bin/sh
set -e
cat > /app/version.py <<'END'
def newest(versions):
    return max(versions, key=lambda version: ([int(part) for part in version.split(".")] + [0] * 4)[:4])
END
