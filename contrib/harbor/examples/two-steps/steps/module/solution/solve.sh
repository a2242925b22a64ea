#!/bin/sh
cat > /app/units.py <<'END'
FACTORS = {"s": 1, "m": 60, "h": 3600}


def to_seconds(text):
    return int(text[:-1]) * FACTORS[text[-1]]
END
