"""tool_api: tools that exist already, functions and services alike, as an environment.

`env` holds the environment and `sources` opens its tools, which come from registered functions, `openapi` documents,
`mcp` servers and the `shop`. Nothing is imported here: the process of the shop does without the environment.
"""
