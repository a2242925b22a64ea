"""Charts: what is drawn is where it should be, and a long curve keeps its peaks."""

from __future__ import annotations

import doctest
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_env.report import numbers, svg_chart
from forge_env.report.numbers import tick_text, ticks
from forge_env.report.svg_chart import Chart, Dot, Line, averaged, running_mean, thinned

FLOATS = st.floats() | st.floats(-1e12, 1e12) | st.sampled_from([5e-324, 1e-300, -1e300, 1.7e308, -1.7e308])


def figure(made: Chart) -> ElementTree.Element:
    """The chart as a tree: it is well-formed."""
    return ElementTree.fromstring(re.sub(r"class=(\w+)>", r'class="\1">', made.html()))


def test_the_examples_of_numbers() -> None:
    assert doctest.testmod(numbers).failed == 0


def test_points_are_where_the_axes_say() -> None:
    made = Chart(title="t", x_label="step", lines=[Line(label="a", points=[(0, 0.0), (5, 0.5), (10, 1.0)])])
    (line,) = figure(made).iter("polyline")
    assert line.get("points") == "0.0,1000.0 500.0,500.0 1000.0,0.0"
    labels = {text.get("y"): text.text for text in figure(made).iter("text") if text.get("class") == "tick y"}
    assert labels["0.00%"] == "1" and labels["100.00%"] == "0"


def test_areas_lie_on_top_of_each_other() -> None:
    lines = [Line(label="a", points=[(0, 1.0), (1, 1.0)]), Line(label="b", points=[(0, 1.0), (1, 3.0)])]
    made = Chart(title="t", x_label="step", unit="s", lines=lines, is_stacked=True)
    first, second = (area.get("points") for area in figure(made).iter("polygon"))
    assert first == "0.0,750.0 1000.0,750.0 1000.0,1000.0 0.0,1000.0"  # of 4 in all
    assert second == "0.0,500.0 1000.0,0.0 1000.0,750.0 0.0,750.0"


@given(
    st.lists(st.tuples(st.integers(0, 10**6), FLOATS), max_size=30), st.booleans(), st.sampled_from(["", "bytes", "%"])
)
def test_any_values_make_a_chart(points: list[tuple[int, float]], is_stacked: bool, unit: str) -> None:
    points = sorted(points, key=lambda point: point[0])
    dots = [Dot(x=x, y=y, low=y - 1, high=y + 1, label="dot") for x, y in points[:2]]
    made = Chart(
        title="<t>", x_label="x", unit=unit, lines=[Line(label="&", points=points)], dots=dots, is_stacked=is_stacked
    )
    if not made.is_empty:
        drawn = [shape.get("points", "") for shape in figure(made).iter() if shape.get("points")]
        for number in re.findall(r"-?[\d.]+", " ".join(drawn)):
            assert -0.1 <= float(number) <= 1000.1
        assert "nan" not in made.html() and "inf" not in made.html()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000))
def test_a_long_curve_keeps_its_peaks(values: list[float]) -> None:
    points = list(enumerate(values))
    kept = thinned(points)
    assert len(kept) <= svg_chart.MAX_POINTS and set(kept) <= {(x, y) for x, y in points}
    assert {max(values), min(values)} <= {y for _, y in kept}
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert len(averaged(points)) <= svg_chart.MAX_POINTS


def test_the_running_mean_looks_back() -> None:
    assert running_mean([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]


@given(st.floats(-1e15, 1e15), st.floats(0, 1e15))
@example(0.0, 5e-324)
@example(5e-324, 0.0)
@example(-1e-310, 2e-310)
def test_ticks_are_round_and_reach_around_the_values(low: float, size: float) -> None:
    values = ticks(low, low + size)
    slack = (abs(low) + size) * 1e-8
    assert values[0] <= low + slack and values[-1] >= low + size - slack
    assert 2 <= len(values) <= 9 and values == sorted(set(values))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.2, 0.9), (0, 4e-7), (1e3, 9e3), (0, 3e6), (-0.05, 0.12)])
def test_no_two_ticks_read_alike(low: float, high: float) -> None:
    values = ticks(low, high)
    texts = [tick_text(tick, max(map(abs, values))) for tick in values]
    assert len(set(texts)) == len(texts) and all(len(text) <= 8 for text in texts)
