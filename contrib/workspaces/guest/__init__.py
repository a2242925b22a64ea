"""What runs inside workspaces, and unpacks their images. Programs here are run by path, never imported by the host."""

from pathlib import Path

WORKSPACE_GUEST = Path(__file__).parent
