#!/bin/sh
set -e
seq 2 199 | while read number; do
    divisor=2
    while [ $((divisor * divisor)) -le "$number" ] && [ $((number % divisor)) -ne 0 ]; do divisor=$((divisor + 1)); done
    if [ $((divisor * divisor)) -gt "$number" ]; then echo "$number"; fi
done > /app/primes.txt
