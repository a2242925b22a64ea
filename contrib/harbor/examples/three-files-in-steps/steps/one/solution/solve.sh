#!/bin/sh
printf workspace | wc -c > /app/one.txt
