#!/bin/sh
set -e
grep -oiE '[a-z0-9.+_-]+@[a-z0-9-]+(\.[a-z0-9-]+)+' /app/notes.txt | tr A-Z a-z | sort -u > /app/addresses.txt
