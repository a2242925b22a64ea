#!/bin/sh
set -e
cat > /app/words.py <<'END'
def longest(text):
    return max(text.split(), key=len, default="")
END
