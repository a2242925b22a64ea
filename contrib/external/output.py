"""What a program has written, up to a bound, and how it ended."""

from __future__ import annotations

import signal
from typing import Any

from contrib.common.programs import last_words
from forge_env.utils import exits

TAIL_BYTES = 64 * 2**10
SHOWN = 4000
"""Characters of its output that are kept with the episode."""


class ProgramOutput:
    """The ends of both streams of a program, and its exit code."""

    kind = "program"
    who = "the program"

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """128 and more for a signal; None while it runs, and if it was ended."""
        self._tails = {"stdout": bytearray(), "stderr": bytearray()}

    def note(self, name: str, data: bytes) -> None:
        self._tails[name] += data
        del self._tails[name][:-TAIL_BYTES]

    def tail(self, name: str) -> str:
        """Return the last TAIL_BYTES that it wrote to "stdout" or "stderr"."""
        return self._tails[name].decode("utf-8", "replace")

    def ending(self, code: int) -> str:
        return how_it_ended(code)

    def facts(self) -> dict[str, Any]:
        """The last SHOWN characters of both streams, and the exit code if it ended by itself."""
        facts: dict[str, Any] = {name: self.tail(name)[-SHOWN:] for name in ("stdout", "stderr")}
        return facts if self.exit_code is None else {**facts, "exit_code": self.exit_code}

    def last_lines(self) -> str:
        """Return the last lines of standard error."""
        return last_words(self._tails["stderr"])


def how_it_ended(code: int) -> str:
    """Describe an exit code, for the middle of a sentence; 128 and more is a signal's."""
    return exits.how_it_ended(128 - code if code - 128 in signal.valid_signals() else code)
