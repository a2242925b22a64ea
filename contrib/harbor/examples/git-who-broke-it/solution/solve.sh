#!/bin/sh
set -e
cd /app && git log --format=%s -S 'limit = 25' -- settings.ini > answer.txt
