#!/bin/sh
cat >> /app/units.py <<'END'


if __name__ == "__main__":
    import sys

    try:
        print(to_seconds(sys.argv[1]))
    except (ValueError, KeyError, IndexError):
        sys.exit(2)
END
