"""The style sheet: text has enough contrast, in light and in dark."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STYLE = resources.files("forge_env.report").joinpath("style.css").read_text(encoding="utf-8")


def colours(scheme: str) -> dict[str, str]:
    """The variables of a colour scheme; a dark one has all that the light one has."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)[:2]
    )
    assert light.keys() == dark.keys()
    return light if scheme == "light" else dark


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance of #rrggbb, or #rgb."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa(scheme: str) -> None:
    colour = colours(scheme)
    for text in ("text", "soft", "good", "bad", "accent"):
        for ground in ("page", "card", "tint"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    assert contrast(colour["text"], colour["warn"]) >= 4.5
    for number in range(1, 9):
        assert contrast(colour[f"c{number}"], colour["card"]) >= 3.0, f"c{number}"


def test_nothing_is_fetched() -> None:
    assert "url(" not in STYLE and "@import" not in STYLE and "http" not in STYLE
