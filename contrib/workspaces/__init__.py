"""Workspaces: machines for agents, from images, and tasks in them."""

from contrib.workspaces.open import open_workspace, open_workspaces

__all__ = ["open_workspace", "open_workspaces"]
