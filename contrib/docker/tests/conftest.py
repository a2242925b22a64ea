"""Images for workspaces in containers."""

from tests.sandboxes.workspaces.conftest import small_image  # noqa: F401
