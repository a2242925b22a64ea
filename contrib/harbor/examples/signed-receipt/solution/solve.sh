#!/bin/sh
set -e
cat > /app/sign.py <<END
import hmac
import sys

print(hmac.new(sys.argv[1].encode(), sys.stdin.buffer.read(), "$DIGEST").hexdigest())
END
