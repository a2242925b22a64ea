#!/bin/sh
# Qwen Code (npm install -g @qwen-code/qwen-code) on the task that is its standard input, with all tools allowed.
# Its settings and sessions are in the private folder of the episode. Its memory is off: a second agent would keep it,
# in rows of its own, and the folder is removed at the end. All tools are listed from the start: tools that come later
# would begin a row each.
# In a sandbox it works there too, since the other folders are read-only.
[ -w . ] || cd "$TMPDIR"
export HOME="$TMPDIR"
mkdir -p "$HOME/.qwen"
echo '{"memory":{"enableManagedAutoMemory":false,"enableManagedAutoDream":false},"tools":{"toolSearch":{"enabled":false}}}' > "$HOME/.qwen/settings.json"
exec qwen --auth-type openai --model "$OPENAI_MODEL" --yolo ${FORGE_ENV_MCP:+--mcp-config "$FORGE_ENV_MCP"}
