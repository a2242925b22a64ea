#!/bin/sh
if [ "$(tr -d ' \n' < /app/two.txt 2>/dev/null)" = 366 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
