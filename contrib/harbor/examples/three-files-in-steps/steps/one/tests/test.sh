#!/bin/sh
if [ "$(tr -d ' \n' < /app/one.txt 2>/dev/null)" = 9 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
