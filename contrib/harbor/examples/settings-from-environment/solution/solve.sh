#!/bin/sh
set -e
cat > /app/settings.py <<'END'
import os
import sys

port = os.environ.get("APP_PORT", "8080")
if not port.isdecimal() or not 1 <= int(port) <= 65535:
    sys.exit(1)
print(f"{os.environ.get('APP_HOST', 'localhost')}:{int(port)}")
END
