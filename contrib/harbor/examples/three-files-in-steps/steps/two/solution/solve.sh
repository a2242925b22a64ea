#!/bin/sh
echo 366 > /app/two.txt
