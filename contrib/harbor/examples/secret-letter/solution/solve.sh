#!/bin/sh
set -e
tr 'l-za-kL-ZA-K' 'a-zA-Z' < /app/letter.txt > /app/plain.txt
