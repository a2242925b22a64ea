"""The demo service of tool_api: a small shop over HTTP, its tasks, and scoring by the final state of its database.

The rules are plain functions over SQLite (`operations`), which the HTTP service (`service`, the only file that needs
fastapi) and the computation of a task's goal (`tasks`) share. `server.ShopServer` runs the service in the process of
`process`; nothing is imported here.
"""
