"""Plots as inline SVG: the report needs no library, no script and no network.

Colours, fonts and line widths are classes (`c-NAME`, `axis`, `grid` …) that the page's style sheet fills for light and
dark. Exact numbers are hover titles: one invisible column over each step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

from rljob_trainer.metric_table import Style
from rljob_trainer.reporting.reading.scales import Scale, bounds, label, ticks, whole_ticks

WIDTH: Final = 480
WIDE: Final = 974
"""width of a bar plot, which takes two columns of the page"""
HEIGHT: Final = 228
LEFT, RIGHT, TOP, BOTTOM = 46, 50, 12, 22
MOST_POINTS: Final = 240
MOST_BARS: Final = 160
MOST_DOTS: Final = 16
_LABEL_HEIGHT: Final = 12


@dataclass(frozen=True, slots=True)
class Series:
    """A line over steps."""

    name: str
    colour: str
    """suffix of the class `c-…`"""
    points: tuple[tuple[int, float | None], ...]
    """(step, value); None is a gap"""
    style: Style = "line"
    errors: Mapping[int, float] | None = None
    """step -> half length of the whisker"""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at a step."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The parts of one step, or of the mean of several."""

    first: int
    last: int
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its title, legend and note."""

    title: str
    unit: str
    svg: str
    legend: tuple[tuple[str, str, str], ...]
    """(name, colour, style) of each line or part"""
    note: str = ""
    wide: bool = False


def line_figure(
    title: str,
    unit: str,
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    y_range: tuple[float | None, float | None] = (None, None),
    note: str = "",
) -> Figure:
    """Return lines over steps. `y_range` fixes an end of the y axis; None lets the data decide."""
    drawn = [_thinned(line) for line in series if bounds(value for _, value in line.points)]
    svg = _line_svg(title, drawn, marks, y_range) if drawn else ""
    return Figure(title, unit, svg, tuple((line.name, line.colour, line.style) for line in drawn), note)


def stacked_figure(
    title: str, unit: str, bars: Sequence[Bar], parts: Sequence[str], marks: Sequence[Mark] = (), note: str = ""
) -> Figure:
    """Return bars over steps, stacked in the order of `parts`; a part's colour is its name."""
    shown = [part for part in parts if any(bar.parts.get(part) for bar in bars)]
    svg = _stacked_svg(title, _merged(bars), shown, marks) if shown else ""
    return Figure(title, unit, svg, tuple((part, part, "bar") for part in shown), note, wide=True)


def share_bar(title: str, shares: Mapping[str, float]) -> str:
    """Return one horizontal bar, split in proportion."""
    total, x = sum(shares.values()), 0.0
    body = []
    for name, value in shares.items():
        width = value / total * 1000
        body.append(
            f'<rect class="f-{escape(name)}" x="{x:.1f}" y="0" width="{width:.1f}" height="20">'
            f"<title>{escape(name)} {value / total:.1%}</title></rect>"
        )
        x += width
    return (
        f'<svg class="share" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{"".join(body)}</svg>'
    )


def _line_svg(
    title: str,
    series: Sequence[Series],
    marks: Sequence[Mark],
    y_range: tuple[float | None, float | None],
) -> str:
    steps = sorted({step for line in series for step, _ in line.points})
    x = _x_scale(steps[0], steps[-1])
    marks_y = _y_ticks(series, y_range)
    y = Scale(marks_y[0], marks_y[-1], HEIGHT - BOTTOM, TOP)
    body = [*_axes(x, y, marks_y), *_marks(marks, x)]
    for line in series:
        body += [*_whiskers(line, x, y), *_paths(line, x, y)]
    body += [*_last_values(series, y, (marks_y[1] - marks_y[0]) / 10), *_columns(steps, series, marks, x)]
    return _svg(title, body, WIDTH)


def _stacked_svg(title: str, bars: Sequence[Bar], parts: Sequence[str], marks: Sequence[Mark]) -> str:
    highest = max(sum(bar.parts.values()) for bar in bars)
    marks_y = ticks(0.0, highest, 6)
    y = Scale(marks_y[0], marks_y[-1], HEIGHT - BOTTOM, TOP)
    width = bars[0].last - bars[0].first + 1
    x = Scale(bars[0].first - 0.5, bars[-1].last + 0.5, LEFT, WIDE - RIGHT)
    body = [*_axes(x, y, marks_y)]
    for bar in bars:
        left, right = x(bar.first - 0.5), x(bar.first - 0.5 + width)
        body.append(_stack(bar, parts, left, (right - left) * 0.84, y))
    return _svg(title, [*body, *_marks(marks, x)], WIDE)


def _stack(bar: Bar, parts: Sequence[str], left: float, width: float, y: Scale) -> str:
    total, rects = 0.0, []
    for part in parts:
        seconds = bar.parts.get(part, 0.0)
        if seconds:
            top = y(total + seconds)
            rects.append(
                f'<rect class="f-{escape(part)}" x="{left:.1f}" y="{top:.2f}" width="{width:.1f}" '
                f'height="{y(total) - top:.2f}"/>'
            )
            total += seconds
    steps = f"step {bar.first}" if bar.first == bar.last else f"steps {bar.first}–{bar.last}, mean"
    lines = [f"{steps}: {label(total)} s"]
    lines += [f"{part} {label(bar.parts[part])} s" for part in parts if part in bar.parts]
    return f'<g class="stack">{"".join(rects)}<title>{escape(chr(10).join(lines))}</title></g>'


def _y_ticks(series: Sequence[Series], y_range: tuple[float | None, float | None]) -> tuple[float, ...]:
    values: list[float | None] = []
    for line in series:
        errors = line.errors or {}
        for step, value in line.points:
            if value is not None:
                values += [value - errors.get(step, 0.0), value + errors.get(step, 0.0)]
    low, high = bounds(values) or (0.0, 1.0)
    fixed_low, fixed_high = y_range
    return ticks(low if fixed_low is None else fixed_low, high if fixed_high is None else fixed_high, 6)


def _x_scale(first: int, last: int) -> Scale:
    if last == first:
        return Scale(first - 1, first + 1, LEFT, WIDTH - RIGHT)
    return Scale(first, last, LEFT + 6, WIDTH - RIGHT)


def _axes(x: Scale, y: Scale, y_ticks: Sequence[float]) -> Iterator[str]:
    bottom, width = HEIGHT - BOTTOM, y_ticks[1] - y_ticks[0]
    for tick in y_ticks:
        top = y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{x.end:.1f}" y1="{top:.1f}" y2="{top:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{label(tick, width)}</text>'
    for step in whole_ticks(round(x.low + 0.4), round(x.high - 0.4), round((x.end - LEFT) / 50)):
        yield f'<text class="tick" x="{x(step):.1f}" y="{bottom + 16}" text-anchor="middle">{step}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{x.end:.1f}" y1="{bottom}" y2="{bottom}"/>'
    yield f'<text class="tick" x="{x.end + 12:.1f}" y="{bottom + 16}">step</text>'


def _paths(line: Series, x: Scale, y: Scale) -> Iterator[str]:
    places = [(x(step), None if value is None else y(value)) for step, value in line.points]
    for there, run in groupby(places, key=lambda place: place[1] is not None):
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in run if top is not None)
        if there and " " in points:
            yield f'<polyline class="{line.style} c-{line.colour}" points="{points}"/>'
    if len(places) <= MOST_DOTS and line.style != "faint":
        yield from (_dot(line, left, top) for left, top in places if top is not None)


def _dot(line: Series, left: float, top: float) -> str:
    """Return a round point, or a square one on a dashed line, so that lines differ without colour."""
    if line.style == "dashed":
        return f'<rect class="dot f-{line.colour}" x="{left - 2.6:.1f}" y="{top - 2.6:.1f}" width="5.2" height="5.2"/>'
    return f'<circle class="dot f-{line.colour}" cx="{left:.1f}" cy="{top:.1f}" r="2.6"/>'


def _whiskers(line: Series, x: Scale, y: Scale) -> Iterator[str]:
    for step, value in line.points:
        if value is not None and line.errors and (error := line.errors.get(step)):
            yield (
                f'<line class="whisker c-{line.colour}" x1="{x(step):.1f}" x2="{x(step):.1f}" '
                f'y1="{y(max(value - error, y.low)):.1f}" y2="{y(min(value + error, y.high)):.1f}"/>'
            )


def _last_values(series: Sequence[Series], y: Scale, width: float) -> Iterator[str]:
    """Write the last value of each line next to it, without overlap."""
    ends = [
        (y(last), label(last, width), line.colour)
        for line in series
        if line.style != "faint" and (last := _last(line)) is not None
    ]
    free = float("inf")
    for wanted, text, colour in sorted(ends, reverse=True):
        free = min(wanted, free - _LABEL_HEIGHT)
        yield f'<text class="end t-{colour}" x="{WIDTH - RIGHT + 6}" y="{free + 4:.1f}">{text}</text>'


def _last(line: Series) -> float | None:
    return next((value for _, value in reversed(line.points) if value is not None), None)


def _marks(marks: Iterable[Mark], x: Scale) -> Iterator[str]:
    for mark in marks:
        if x.low <= mark.step <= x.high:
            left = x(mark.step)
            yield (
                f'<g class="mark"><line x1="{left:.1f}" x2="{left:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                f'<path d="M{left - 4:.1f},{TOP - 7} h8 l-4,7 z"/><title>{escape(mark.text)}</title></g>'
            )


def _columns(steps: Sequence[int], series: Sequence[Series], marks: Sequence[Mark], x: Scale) -> Iterator[str]:
    values = [(line.name, dict(line.points)) for line in series]
    texts = {mark.step: mark.text for mark in marks}
    height = HEIGHT - BOTTOM - TOP
    for index, step in enumerate(steps):
        left = (x(steps[index - 1]) + x(step)) / 2 if index else x(step) - 6
        right = (x(steps[index + 1]) + x(step)) / 2 if index + 1 < len(steps) else x(step) + 6
        lines = [f"step {step}"]
        lines += [f"{name} {label(value)}" for name, points in values if (value := points.get(step)) is not None]
        lines += [texts[step]] if step in texts else []
        yield (
            f'<g class="column"><rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{height}"/>'
            f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f"<title>{escape(chr(10).join(lines))}</title></g>"
        )


def _svg(title: str, body: Iterable[str], width: int) -> str:
    # No <title> child here: a browser would show it wherever no column is.
    return f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'


def _thinned(line: Series) -> Series:
    """Return the line with at most MOST_POINTS points, each the mean of its neighbours."""
    every = -(-len(line.points) // MOST_POINTS)
    if every == 1:
        return line
    points = []
    for start in range(0, len(line.points), every):
        part = line.points[start : start + every]
        values = [value for _, value in part if value is not None]
        points.append((part[-1][0], sum(values) / len(values) if values else None))
    return Series(line.name, line.colour, tuple(points), line.style)


def _merged(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """Return at most MOST_BARS bars, each the mean of its neighbours."""
    every = -(-len(bars) // MOST_BARS)
    if every == 1:
        return tuple(bars)
    merged = []
    for start in range(0, len(bars), every):
        part = bars[start : start + every]
        names = {name: None for bar in part for name in bar.parts}
        means = {name: sum(bar.parts.get(name, 0.0) for bar in part) / len(part) for name in names}
        merged.append(Bar(part[0].first, part[-1].last, means))
    return tuple(merged)
