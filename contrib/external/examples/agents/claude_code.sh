#!/bin/sh
# Claude Code (npm install -g @anthropic-ai/claude-code) on the task that is its standard input, with all tools allowed.
# Its settings and sessions are in the private folder of the episode. All tools are listed from the start: tools that
# come later would begin a row each.
# In a sandbox it works there too, since the other folders are read-only.
[ -w . ] || cd "$TMPDIR"
export HOME="$TMPDIR" IS_SANDBOX=1 ENABLE_TOOL_SEARCH=false DISABLE_TELEMETRY=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
exec claude -p --dangerously-skip-permissions --model "$ANTHROPIC_MODEL" ${FORGE_ENV_MCP:+--mcp-config "$FORGE_ENV_MCP"}
