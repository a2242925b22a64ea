"""Charts as SVG that needs no script: lines, areas on top of each other, points with intervals.

The plot is stretched to the width that it has, and text and strokes are not: so one chart is readable on a phone and on
paper. Colours are classes that the page's style sheet fills, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from forge_env.report.numbers import short, tick_text, ticks

MOST_POINTS = 400
"""Of a line; more would not be seen."""
COLOURS = 8
"""Classes c1 to c8 of the style sheet."""
LARGEST = 1e300
"""Of a value that is drawn: the distance between larger ones is no float any more."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series of values. Example: ``Line(label="reward", points=[(1, 0.2), (2, 0.4)])``"""

    label: str
    points: Points
    is_faint: bool = False
    """Drawn thin and pale: the raw values below their running mean."""
    colour: int = 0
    """From 1; 0 is the next one."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A measured value with its interval."""

    x: float
    y: float
    low: float
    high: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One diagram. Values that are not finite, or larger than `LARGEST`, are left out."""

    title: str
    x_label: str
    lines: Sequence[Line]
    unit: str = ""
    """Of y: "bytes", "s", "%" or any other word."""
    dots: Sequence[Dot] = ()
    is_stacked: bool = False
    """Areas on top of each other; all lines have the same x."""
    bounds: tuple[float, float] | None = None
    """The least range of y."""
    note: str = ""
    """One sentence below, in plain text."""
    marks: Sequence[float] = ()
    """Values of x where something happened; drawn as thin vertical lines."""
    starts_at: float | None = None
    """The least x that is shown; None is that of the values."""

    @property
    def is_empty(self) -> bool:
        return not any(_finite(line.points) for line in self.lines) and not self._shown_dots

    @property
    def _shown_dots(self) -> list[Dot]:
        return [dot for dot in self.dots if all(map(_is_drawable, (dot.x, dot.y, dot.low, dot.high)))]

    def html(self) -> str:
        """The chart as a figure; everything that is text is escaped."""
        lines = self._drawn()
        scale, y_ticks = self._axes(lines)
        shapes = "".join(line.shape(scale) for line in lines)
        return (
            f'<figure class="chart"><figcaption>{escape(self.title)}{self._latest(lines)}</figcaption>'
            f'<div class="plot"><svg role="img" aria-label="{escape(self.title, quote=True)}">'
            f"{_grid(scale, y_ticks, self.unit)}"
            f"{''.join(_mark(scale, x) for x in self.marks)}"
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">{shapes}</svg>'
            f"{''.join(_dot(scale, dot) for dot in self._shown_dots)}"
            f'</svg></div><p class="x-label">{escape(self.x_label)}</p>{self._legend(lines)}'
            f"{f'<p class=note>{escape(self.note)}</p>' if self.note else ''}</figure>"
        )

    def _drawn(self) -> list[_Drawn]:
        """The lines that have anything to show; with `is_stacked` each on top of those before it."""
        found: list[_Drawn] = []
        below: list[float] = []
        for number, line in enumerate(self.lines):
            if not _finite(line.points):
                continue
            points = averaged(line.points) if self.is_stacked else thinned(line.points)
            below = below or [0.0] * len(points)
            floor = below if self.is_stacked else None
            if floor is not None:
                points = [(x, low + y) for (x, y), low in zip(points, floor, strict=True)]
                below = [y for _, y in points]
            colour = ((line.colour or number + 1) - 1) % COLOURS + 1
            found.append(_Drawn(line.label, points, colour=colour, is_faint=line.is_faint, floor=floor))
        return found

    def _axes(self, lines: Sequence[_Drawn]) -> tuple[_Scale, list[float]]:
        """Where values are drawn, and the round values of y."""
        xs = [x for line in lines for x, _ in line.points] + [dot.x for dot in self._shown_dots]
        xs += [] if self.starts_at is None else [self.starts_at]
        ys = [y for line in lines for y in (*(y for _, y in line.points), *(line.floor or ()))]
        ys += [y for dot in self._shown_dots for y in (dot.low, dot.high)] + list(self.bounds or ())
        y_ticks = _unit_ticks(min(ys), max(ys), self.unit)
        return _Scale(x=(min(xs), max(xs)), y=(y_ticks[0], y_ticks[-1])), y_ticks

    def _latest(self, lines: Sequence[_Drawn]) -> str:
        main = [line for line in lines if not line.is_faint]
        if len(main) != 1 or self.is_stacked:
            return f' <span class="unit">{escape(_unit_name(self.unit))}</span>' if _unit_name(self.unit) else ""
        return f' <span class="latest">{escape(short(main[0].points[-1][1], self.unit))}</span>'

    def _legend(self, lines: Sequence[_Drawn]) -> str:
        shown = [line for line in lines if not line.is_faint]
        entries = [f'<li class="c{line.colour}">{escape(line.label)}</li>' for line in shown]
        entries += ['<li class="dots">held out</li>'] if self._shown_dots else []
        return f'<ul class="legend">{"".join(entries)}</ul>' if len(entries) > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, x: float) -> float:
        """The share of the width at which x is."""
        low, high = self.x
        return (x - low) / (high - low) if high > low else 0.5

    def down(self, y: float) -> float:
        low, high = self.y
        return 1.0 - (y - low) / (high - low)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A line or an area, with no more points than are seen."""

    label: str
    points: list[tuple[float, float]]
    colour: int
    is_faint: bool
    floor: list[float] | None
    """Of an area, its lower edge."""

    def shape(self, scale: _Scale) -> str:
        css, first = f"c{self.colour}{' faint' if self.is_faint else ''}", _path(scale, self.points)
        if self.floor is not None:
            back = [(x, y) for (x, _), y in zip(reversed(self.points), reversed(self.floor), strict=True)]
            return f'<polygon class="area {css}" points="{first} {_path(scale, back)}"/>'
        if len(self.points) == 1:
            return f'<path class="line single {css}" d="M{first}h0.01"/>'
        return f'<polyline class="line {css}" points="{first}"/>'


def running_mean(points: Points, window: int) -> list[tuple[float, float]]:
    """The mean of each value and those before it, `window` of them."""
    found, values = [], [y for _, y in points]
    for i, (x, _) in enumerate(points):
        own = values[max(0, i - window + 1) : i + 1]
        found.append((x, math.fsum(own) / len(own)))
    return found


def thinned(points: Points) -> list[tuple[float, float]]:
    """At most about MOST_POINTS points: of each stretch the least and the greatest, so that no peak is lost."""
    known = _finite(points)
    if len(known) <= MOST_POINTS:
        return known
    found: list[tuple[float, float]] = []
    for part in _stretches(known, MOST_POINTS // 2):
        least, most = min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])
        found += sorted({least, most})
    return found


def averaged(points: Points) -> list[tuple[float, float]]:
    """At most MOST_POINTS points, the means of stretches; what cannot be drawn is 0, so that areas have the same x."""
    known = [(x, y if _is_drawable(y) else 0.0) for x, y in points]
    if len(known) <= MOST_POINTS:
        return known
    return [(part[0][0], math.fsum(y for _, y in part) / len(part)) for part in _stretches(known, MOST_POINTS)]


def _stretches(points: Points, most: int) -> Iterator[Points]:
    size = math.ceil(len(points) / most)
    return (points[start : start + size] for start in range(0, len(points), size))


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if _is_drawable(x) and _is_drawable(y)]


def _is_drawable(value: float) -> bool:
    return abs(value) <= LARGEST  # which nan is not


def _unit_ticks(low: float, high: float, unit: str) -> list[float]:
    if unit != "bytes":
        return ticks(low, high)
    size = 2.0 ** (10 * (int(math.log2(max(abs(high), 1.0))) // 10))
    return [tick * size for tick in ticks(low / size, high / size)]


def _unit_name(unit: str) -> str:
    return "" if unit == "bytes" else {"s": "seconds"}.get(unit, unit)


def _grid(scale: _Scale, y_ticks: Sequence[float], unit: str) -> str:
    found = []
    for tick in y_ticks:
        y = f"{scale.down(tick):.2%}"
        found.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        text = escape(tick_text(tick, max(map(abs, y_ticks)), unit))
        found.append(f'<text class="tick y" x="-8" y="{y}" dy="0.32em">{text}</text>')
    low, high = scale.x
    inside = [tick for tick in ticks(low, high) if low <= tick <= high] if high > low else [low]
    for tick in inside:
        x, text = f"{scale.across(tick):.2%}", escape(tick_text(tick, max(map(abs, inside))))
        found.append(f'<text class="tick x" x="{x}" y="100%" dy="1.5em">{text}</text>')
    return "".join(found)


def _path(scale: _Scale, points: Points) -> str:
    return " ".join(f"{scale.across(x) * 1000:.1f},{scale.down(y) * 1000:.1f}" for x, y in points)


def _dot(scale: _Scale, dot: Dot) -> str:
    x, y = f"{scale.across(dot.x):.2%}", f"{scale.down(dot.y):.2%}"
    low, high = f"{scale.down(dot.low):.2%}", f"{scale.down(dot.high):.2%}"
    return (
        f'<g class="dot"><title>{escape(dot.label)}</title><line x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
        f'<circle cx="{x}" cy="{y}" r="4"/></g>'
    )


def _mark(scale: _Scale, x: float) -> str:
    across = f"{scale.across(x):.2%}"
    return f'<line class="mark" x1="{across}" x2="{across}" y1="0" y2="100%"/>'
