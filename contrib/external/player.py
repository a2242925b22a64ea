"""What plays an episode of external: a program that was started for it, or an agent elsewhere that took a session."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from contrib.external.scoring import Result


class Player(Protocol):
    """Asks the model during an episode; its work is scored."""

    kind: str
    """The key of its facts in the info of the Episode."""
    who: str
    """The subject of sentences about it."""

    @property
    def listener(self) -> socket.socket | None:
        """A listener in the network of its sandbox, for the gateway to serve."""

    async def wait_for_end(self) -> int:
        """Wait for its end; return an exit code, 0 if all is well."""
        ...

    def ending(self, code: int) -> str:
        """Return how it ended, as the verb of a sentence."""
        ...

    def result(self, last_words: str) -> Result:
        """Return its answer and the reward that it gives itself. The model's last message is the answer by default."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what the Episode keeps of it."""
        ...

    def last_lines(self) -> str:
        """Return the last lines that it wrote about itself, for the sentence about a failure."""
        ...

    async def close(self) -> None:
        """End it. May be called again."""
