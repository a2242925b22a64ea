#!/bin/sh
# opencode (npm install -g opencode-ai) on the task that is its standard input, with all tools allowed.
# Its settings and sessions are in the private folder of the episode. No title is asked for, which would be a row.
# In a sandbox it works there too, since the other folders are read-only.
[ -w . ] || cd "$TMPDIR"
export HOME="$TMPDIR" OPENCODE_DISABLE_AUTOUPDATE=1
options="{\"baseURL\":\"$OPENAI_BASE_URL\",\"apiKey\":\"$OPENAI_API_KEY\"}"
provider="{\"npm\":\"@ai-sdk/openai-compatible\",\"name\":\"forge\",\"options\":$options,\"models\":{\"$OPENAI_MODEL\":{}}}"
export OPENCODE_CONFIG_CONTENT="{\"provider\":{\"forge\":$provider},\"agent\":{\"title\":{\"disable\":true}}}"
[ -z "$FORGE_ENV_MCP" ] || export OPENCODE_CONFIG="${FORGE_ENV_MCP%.json}.opencode.json"
exec opencode run --model "forge/$OPENAI_MODEL"
