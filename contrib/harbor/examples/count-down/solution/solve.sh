#!/bin/sh
set -e
cat > /app/count_down.sh <<'END'
case "$1" in
    "" | *[!0-9]* | 0) exit 2 ;;
esac
at=$1
while [ "$at" -gt 0 ]; do
    echo "$at"
    at=$((at - 1))
done
echo go
END
