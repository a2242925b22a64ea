"""Workspaces: file systems from images, with commands, shells, files and snapshots (`contrib.workspaces.contract`)."""
