"""What a line of the table of metrics says, and how the table is read from a class. The table itself is `metrics.py`.

A line is a field of a dataclass: its type is what code sees, its `Metric` says how it is reduced and where it is shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from math import nan
from statistics import fmean
from typing import Any, Literal, TypeVar

Unit = Literal["", "nats", "share", "steps", "tokens", "tokens/s", "s", "bytes", "W", "°C"]
Style = Literal["line", "dashed", "faint"]
Reduction = Literal["mean", "sum", "count", "largest"]
OverSteps = Callable[[Sequence[float]], float]
_Getter = TypeVar("_Getter", bound=Callable[..., float | None])


@dataclass(frozen=True, slots=True)
class Plot:
    """A line in a figure of the report. Metrics with one title share a figure; the first of them decides its looks."""

    title: str
    line: str
    low: float | None = None
    """where the y axis begins; None: the data decides"""
    colour: str = "primary"
    style: Style = "line"
    note: str = ""
    marks: bool = False
    """mark failures and restarts, too"""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric is, where it is shown (only where a name is given), and how it is reduced."""

    text: str
    unit: Unit = ""
    gauge: str = ""
    """name in Prometheus, of the last step's value"""
    tag: str = ""
    """name in TensorBoard and Weights & Biases"""
    tokens: Reduction | None = None
    """over the response tokens of all micro-batches and ranks; None: every rank has the same value"""
    steps: OverSteps = fmean
    """over the optimizer steps of one step"""
    plot: Plot | None = None
    """in the HTML report"""
    counter: str = ""
    """name in Prometheus without `_total`, of the sum since the driver began"""
    initial: float = nan
    """the gauge's value before the first step"""


def metric(
    text: str,
    unit: Unit = "",
    gauge: str = "",
    tag: str = "",
    *,
    default: int | None = None,
    tokens: Reduction | None = None,
    steps: OverSteps = fmean,
    plot: Plot | None = None,
    counter: str = "",
    initial: float = nan,
) -> Any:
    """Return a dataclass field that is a line of the table."""
    line = Metric(text, unit, gauge, tag, tokens, steps, plot, counter, initial)
    return field(default=default, metadata={"metric": line})


def derived(line: Metric) -> Callable[[_Getter], _Getter]:
    """Make a property a line of the table: `@property` above `@derived(...)`."""

    def mark(getter: _Getter) -> _Getter:
        getter.__dict__["metric"] = line
        return getter

    return mark


def last(values: Sequence[float]) -> float:
    return values[-1]


def table(kind: type[Any]) -> dict[str, Metric]:
    """Return the metrics of a dataclass by name: its fields, then its properties, each in the order of the source."""
    lines = {each.name: each.metadata.get("metric") for each in fields(kind)}
    for parent in reversed(kind.__mro__):
        lines |= {
            name: getattr(member.fget, "metric", None)
            for name, member in vars(parent).items()
            if isinstance(member, property)
        }
    return {name: line for name, line in lines.items() if line is not None}
