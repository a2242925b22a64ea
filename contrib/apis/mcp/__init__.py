"""Tools of MCP servers: `tools` makes them, over a `connection` that uses one of the two `transport`s."""
