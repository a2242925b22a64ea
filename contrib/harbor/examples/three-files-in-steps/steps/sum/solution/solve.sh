#!/bin/sh
echo $(($(cat /app/one.txt) + $(cat /app/two.txt))) > /app/sum.txt
