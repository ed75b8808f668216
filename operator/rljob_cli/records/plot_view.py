"""The curve of a run as a picture in the terminal, as SVG and as JSON. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rljob_api.control import CurvePoint
from rljob_cli.terminal.chart import chart
from rljob_trainer.reporting.reading.plots import HEIGHT, WIDTH, Series, line_figure
from rljob_trainer.reporting.reading.scales import label

STYLE = """\
svg{font:11px system-ui,sans-serif;background:#fff}.grid{stroke:#e3e6ea}.axis{stroke:#8a929c}.tick{fill:#5c646e}
polyline{fill:none;stroke-width:2}.c-one{stroke:#2f6fe0}.f-one,.t-one{fill:#2f6fe0}
.column rect{fill:transparent}.column line{stroke:none}.end{font-weight:600}"""


class Metric(StrEnum):
    """What may be plotted."""

    REWARD = "reward"
    HELD_OUT = "held-out"
    PERPLEXITY = "perplexity"
    HELD_OUT_PERPLEXITY = "held-out-perplexity"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    unit: str
    field: str
    """of a CurvePoint"""
    colour: str


AXES: Mapping[Metric, Axis] = {
    Metric.REWARD: Axis("mean reward", "", "reward", "#5b9bf8"),
    Metric.HELD_OUT: Axis("held-out accuracy", "", "accuracy", "#f09a43"),
    Metric.PERPLEXITY: Axis("perplexity", "", "perplexity", "#5b9bf8"),
    Metric.HELD_OUT_PERPLEXITY: Axis("held-out perplexity", "", "held_out_perplexity", "#f09a43"),
    Metric.TOKENS: Axis("rollout", "tokens/s", "tokens_per_second", "#4fbf83"),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's curve and whose it is."""

    name: str
    state: str
    """what to say of the run in a word or two"""
    points: tuple[CurvePoint, ...]

    def values(self, metric: Metric) -> list[tuple[int, float]]:
        """Return (step, value) where it was measured."""
        pairs = [(point.step, getattr(point, AXES[metric].field)) for point in self.points]
        return [(step, value) for step, value in pairs if value is not None]

    def measured(self) -> tuple[Metric, ...]:
        """Return reward and held-out accuracy, or perplexities: what was recorded besides speed."""
        return tuple(metric for metric in Metric if metric is not Metric.TOKENS and self.values(metric))


def as_charts(
    curve: Curve, metrics: Sequence[Metric], width: int, height: int, ascii_only: bool = False
) -> RenderableType:
    """Return a chart for each metric, one above the other, of at most `width` columns and about `height` lines."""
    parts: list[RenderableType] = [Text.assemble((curve.name, "bold"), f"  {curve.state}")]
    for metric in metrics:
        parts += ["", *_chart(curve, metric, width, max(5, (height - 1) // len(metrics) - 4), ascii_only)]
    return Group(*parts) if metrics else Group(*parts, Text("no step is finished yet"))


def _chart(curve: Curve, metric: Metric, width: int, height: int, ascii_only: bool) -> list[RenderableType]:
    axis, points = AXES[metric], curve.values(metric)
    if not points:
        return [Text(f"{axis.title}: not measured")]
    first, last = label(points[0][1]), label(points[-1][1])
    change = f"{first} → {last}" if len(points) > 1 else last
    unit = f" {axis.unit}" if axis.unit else ""
    title = Text.assemble((axis.title, "bold"), f"  {change}{unit}, steps {points[0][0]} to {points[-1][0]}")
    lines = chart([(float(step), value) for step, value in points], width, height, ascii_only)
    return [title, *(Text(line, style=axis.colour, no_wrap=True, overflow="crop") for line in lines)]


def as_svg(curve: Curve, metric: Metric) -> str:
    """Return a picture that stands alone, white behind it."""
    axis = AXES[metric]
    points: tuple[tuple[int, float | None], ...] = tuple(curve.values(metric))
    svg = line_figure(f"{curve.name}: {axis.title}", axis.unit, [Series(axis.title, "one", points)]).svg
    head, _, body = (svg or f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"></svg>').partition(">")
    size = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
    return f"{head.replace('<svg', f'<svg {size}', 1)}><style>{STYLE}</style>{body}"


def as_value(curve: Curve) -> dict[str, Any]:
    """Return all metrics for a JSON document."""
    return {
        "name": curve.name,
        "state": curve.state,
        "points": [point.model_dump(mode="json") for point in curve.points],
    }
