"""Workspaces: file systems from images, with commands, shells, files and snapshots (`forge_env.core.workspace`)."""
