#!/bin/sh
# Codex (npm install -g @openai/codex) on the task that is its standard input, with all tools allowed.
# Its settings and sessions are in the private folder of the episode.
# In a sandbox it works there too, since the other folders are read-only.
[ -w . ] || cd "$TMPDIR"
export HOME="$TMPDIR"
provider="{name=\"forge\",base_url=\"$OPENAI_BASE_URL\",env_key=\"OPENAI_API_KEY\",wire_api=\"responses\"}"
[ -z "$FORGE_ENV_MCP" ] || set -- -c mcp_servers="$(cat "${FORGE_ENV_MCP%.json}.toml")"
exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
    -c model_provider=forge -c model_providers.forge="$provider" "$@" -m "$OPENAI_MODEL" -
