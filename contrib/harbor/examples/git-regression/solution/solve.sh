#!/bin/sh
set -e
sed -i 's/\[^a-z\]/[^a-z0-9]/' /app/text.py
