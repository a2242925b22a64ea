"""Images for workspaces in containers."""

from contrib.workspaces.tests.machines.conftest import small_image  # noqa: F401
