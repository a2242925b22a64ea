#!/bin/sh
set -e
for file in /app/in/*.txt; do sed '1!G;h;$!d' $file > /app/out/$(basename $file); done
