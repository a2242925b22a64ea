#!/bin/sh
set -e
echo 'hello, workspace' > /app/hello.txt
