"""Where the tools of `tool_api` come from: registered functions, OpenAPI documents and MCP servers.

`sources.open_sources` turns what a user types into tools; `openapi` and `mcp_tools` make tools out of documents and
servers; `http` is the client that the calls go through, with its `limits`, `credentials` and `cassette`.
Nothing is imported here.
"""
