"""Images, sounds and documents, as a model that reads text is told of them: `[image: image/png, 9 bytes]`."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One of them, with its content, or with the place of it.

    >>> Medium(kind="image", media_type="image/png", data="AAAA").note
    '[image: image/png, 3 bytes]'
    """

    kind: str
    media_type: str = ""
    data: str = ""
    """In base64."""
    place: str = ""
    """A URL, or the id of a file."""

    @classmethod
    def at(cls, kind: str, url: str, media_type: str = "") -> Self:
        """What is at a URL, or in it.

        >>> Medium.at("image", "data:image/svg+xml,%3Csvg/%3E").note
        '[image: image/svg+xml, 6 bytes]'
        """
        if url[:5].lower() != "data:":
            return cls(kind=kind, media_type=media_type, place=url)
        head, _, data = url[5:].partition(",")
        type_of_data, *parameters = head.split(";")
        if "base64" not in parameters:
            data = base64.b64encode(unquote_to_bytes(data)).decode()
        return cls(kind=kind, media_type=type_of_data or media_type, data=data)

    @property
    def note(self) -> str:
        if self.place:
            return f"[{self.kind}: {self.place:.500}]"
        return f"[{self.kind}: {self.media_type or 'unknown type'}, {len(self._digits) * 3 // 4} bytes]"

    @property
    def digest(self) -> str:
        digits = self._digits
        try:
            content = base64.b64decode(digits + "=" * (-len(digits) % 4))
        except ValueError:
            content = self.data.encode(errors="replace")
        return hashlib.sha256(content).hexdigest()

    @property
    def _digits(self) -> str:
        return "".join(self.data.split()).rstrip("=")
