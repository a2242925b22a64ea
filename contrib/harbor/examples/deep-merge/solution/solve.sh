#!/bin/sh
set -e
cat > /app/merge.py <<'END'
def merge(one, other):
    result = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if both else value
    return result
END
