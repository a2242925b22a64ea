#!/bin/sh
set -e
cd /app && tar -czf tables.tar.gz $(find data -name '*.csv' | sort)
