"""Formats numbers for people."""

from __future__ import annotations

import math

UNITS = ("", "k", "M", "G", "T")


def short(value: float, unit: str = "") -> str:
    """Format a number in few characters.

    >>> short(0.12345), short(1234567.0), short(0.00000123), short(3.5 * 2**30, "bytes"), short(75.0, "s")
    ('0.123', '1.23M', '1.2e-06', '3.5 GiB', '75 s')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if unit == "bytes":
        return _bytes(value)
    text = _plain(value)
    return f"{text} {unit}" if unit else text


def duration(seconds: float) -> str:
    """Format seconds in their two largest units.

    >>> duration(8.04), duration(75), duration(3720), duration(200_000)
    ('8.0 s', '1 min 15 s', '1 h 2 min', '2 d 7 h')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "none"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = ((whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {name}" for count, name in parts[first : first + 2] if count)


def _bytes(value: float) -> str:
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(value) >= 2**power:
            number = value / 2**power
            return f"{number:.3g} {name}" if abs(number) < 1000 else f"{number:.0f} {name}"
    return f"{value:.0f} B"


def _plain(value: float) -> str:
    size = abs(value)
    if value == int(value) and size < 10_000:
        return str(int(value))
    if size < 0.001:
        return f"{value:.1e}"
    if size < 1:
        return f"{value:.3f}"
    if size < 1000:
        return f"{value:.3g}"
    power = min(len(UNITS) - 1, int(math.log10(size)) // 3)
    return f"{value / 1000**power:.3g}{UNITS[power]}"
