#!/bin/sh
if [ "$(tr -d ' \n' < /app/sum.txt 2>/dev/null)" = 375 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
