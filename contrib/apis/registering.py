"""Sources of tools as `forge-env register` and `forge-env info` take them."""

from __future__ import annotations

from pathlib import Path

from contrib.apis.sources import list_tools
from contrib.apis.tool_names import label_of
from forge_env.core.errors import UserError
from forge_env.core.tools import Tool


class Source:
    """What the registry asks of a source, "openapi:..." or "mcp:..."."""

    @staticmethod
    def written(source: str, base_url: str = "") -> str:
        """Return it for a registry file: its document with an absolute path, and behind # the base URL."""
        kind, _, rest = source.partition(":")
        document, separator, written_url = rest.partition("#")
        if base_url and (kind != "openapi" or separator):
            raise UserError(
                f"--base-url {base_url} is for openapi:DOCUMENT without a # in it, and the target is {source!r}"
            )
        if kind != "openapi" or not document:
            return source
        document = document if "://" in document else str(Path(document).expanduser().resolve())
        return f"openapi:{document}#{base_url}" if base_url else f"openapi:{document}{separator}{written_url}"

    @staticmethod
    async def described(source: str) -> tuple[str, list[Tool]]:
        return label_of(source), await list_tools(source)
