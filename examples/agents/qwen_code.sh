#!/bin/sh
# Qwen Code (npm install -g @qwen-code/qwen-code) on the task that is its standard input, with all tools allowed.
# Its settings and sessions are in the private folder of the episode.
export HOME="$TMPDIR"
exec qwen --auth-type openai --model "$OPENAI_MODEL" --yolo
