"""What the model is shown of files and of the output of commands: windows, and notes about what is left out."""

from __future__ import annotations

import re

from contrib.workspaces.contract import CommandResult
from forge_env.core.sandbox import ExecStatus

MAX_CHARACTERS = 8000
"""Characters of one result; more is left out in the middle, since the end of an output often has the error."""
READ_LINES = 200
MATCH_CHARACTERS = 300
"""Characters of one line that a search has found."""
_SUMMARY = re.compile(
    r"^(=+ )?((?:\d[\d/]* |no tests |Ran \d+ )[\w ,()]*?) in \d+\.\d+s(?: \([\w:, ]+\))?(?: =+)?$", re.MULTILINE
)


def shorten(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return a text with its middle left out, and a note in its place.

    >>> shorten("abcdefghij", 4)
    'ab\\n[6 characters left out]\\nij'
    """
    if len(text) <= limit:
        return text
    head = limit - limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[len(text) - limit // 2 :]}"


def describe(result: CommandResult, limit_s: float) -> str:
    """Return the output of a command, and how it ended if that was not with exit code 0.

    Nothing of it depends on the speed of the machine, if the output does not: equal calls have equal results.

    Args:
        limit_s: the time limit that the command had.
    """
    outputs = (result.stdout, result.stderr)
    parts = [shorten(without_durations(text.rstrip("\n"))) for text in outputs if text.strip("\n")]
    if result.truncated_stdout or result.truncated_stderr:
        has_ended = result.status in (ExecStatus.OK, ExecStatus.NONZERO)  # or the size is that at which it was killed
        size = f": it had {result.stdout_bytes + result.stderr_bytes} bytes" if has_ended else ""
        parts.append(f"[the output was cut{size}]")
    if reason := _reason(result, limit_s):
        parts.append(f"[{reason}]")
    if result.in_new_shell:
        parts.append("[the shell had ended: this command ran in a new one]")
    elif result.state_lost:
        parts.append("[the shell has ended: the next command runs in a new one]")
    return "\n".join(parts) or "[no output]"


def without_durations(text: str) -> str:
    """Return a text without the seconds in the summaries of pytest and unittest.

    >>> without_durations("==== 1 failed, 2 passed in 0.12s ====")
    '=== 1 failed, 2 passed ==='
    """
    return _SUMMARY.sub(lambda match: f"=== {match[2]} ===" if match[1] else match[2], text)


def number_lines(text: str, path: str, start: int, count: int) -> str:
    """Return lines of a file with their numbers, and where to read on.

    >>> numbered("a\\nb\\nc\\n", "f", 2, 1)
    '2  b\\n[line 2 of 3; read on with start=3]'
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return f"[{path} is empty]"
    if not 1 <= start <= len(lines):
        return f"[{path} has {len(lines)} lines: start is 1 to {len(lines)}]"
    excerpt = lines[start - 1 : start - 1 + count]
    end = start + len(excerpt) - 1
    width = len(str(end))
    body = shorten("\n".join(f"{number:>{width}}  {line}" for number, line in enumerate(excerpt, start)))
    if start == 1 and end == len(lines):
        return body
    place = f"line {start}" if start == end else f"lines {start} to {end}"
    more = f"; read on with start={end + 1}" if end < len(lines) else ""
    return f"{body}\n[{place} of {len(lines)}{more}]"


def matches(text: str, most: int) -> str:
    """Lines that match, up to a number, and a note on what was left out of them.

    >>> matches("a:1:x\nb:2:y\n", 1)
    'a:1:x\n[more lines match: these are the first 1]'
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    excerpt = [
        line
        if len(line) <= MATCH_CHARACTERS
        else f"{line[:MATCH_CHARACTERS]} [cut: the line has {len(line)} characters]"
        for line in lines[:most]
    ]
    return "\n".join([*excerpt, *([f"[more lines match: these are the first {most}]"] if len(lines) > most else [])])


def replace_once(text: str, old: str, new: str, path: str) -> str:
    """Replace a passage that occurs exactly once."""
    if not old:
        raise ValueError("old is empty; it is the passage to replace")
    count = text.count(old)
    if count == 1:
        return text.replace(old, new)
    if count == 0:
        raise ValueError(f"{path} does not contain this passage; it must match exactly, with its white space")
    places, at = [], -1
    for _ in range(min(count, 5)):
        at = text.index(old, at + 1)
        places.append(str(text.count("\n", 0, at) + 1))
    raise ValueError(
        f"{path} contains this passage {count} times (lines {', '.join(places)}): give more of its context"
    )


def _reason(result: CommandResult, limit_s: float) -> str:
    match result.status:
        case ExecStatus.OK:
            return ""
        case ExecStatus.NONZERO:
            return f"exit code {result.exit_code}"
        case ExecStatus.SIGNALED:
            return f"killed by signal {result.signal}"
        case ExecStatus.TIMEOUT:
            return f"killed: it ran longer than {limit_s:.3g} s"
        case _:
            return f"killed by the limit of {result.status.value.replace('_limit', '')}"
