#!/bin/sh
set -e
cat > /app/brackets.py <<'END'
PAIRS = {")": "(", "]": "[", "}": "{"}


def first_problem(text):
    opened = []
    for at, character in enumerate(text):
        if character in PAIRS.values():
            opened.append(at)
        elif character in PAIRS:
            if not opened or text[opened.pop()] != PAIRS[character]:
                return at
    return opened[-1] if opened else -1
END
