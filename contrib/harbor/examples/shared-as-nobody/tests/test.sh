#!/bin/sh
# The agent was no root, so the programs are those of the image. It owned the logs, which it does no more.
set -e
chown -R 0:0 /logs /tests
chmod -R go-rwx /logs /tests
exec python3 -E -s /tests/grade.py
