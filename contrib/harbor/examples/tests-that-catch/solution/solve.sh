#!/bin/sh
set -e
cat > /app/test_clamp.py <<'END'
import itertools

from clamp import clamp


def test_clamp():
    for value, low, high in itertools.product(range(-5, 6), repeat=3):
        if low <= high:
            expected = low if value < low else high if value > high else value
            assert clamp(value, low, high) == expected
END
