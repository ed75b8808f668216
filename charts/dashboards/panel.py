"""What a dashboard is made of, and the pieces of queries that panels share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    text: str
    """what it shows, and when to worry"""
    queries: Mapping[str, str]
    """by legend"""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    thresholds: Mapping[float, str] | None = None
    """color from a value on"""
    stacked: bool = False
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice above the panels, from the values of a label."""

    label: str
    series: str
    everything: bool = False


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    text: str
    variables: Sequence[Variable]
    rows: Sequence[Row]


RATE = "[$__rate_interval]"
ALL = '{namespace=~"$namespace"}'
ONE = '{namespace="$namespace", rljob="$rljob"}'
GOOD_WHEN_1 = {0.0: "red", 1.0: "green"}
BAD_FROM_1 = {0.0: "green", 1.0: "red"}


def per_job(series: str) -> str:
    """Return the series once for each job: two replicas, or two drivers of one job, must not count twice."""
    return f"max by (namespace, rljob) ({series})"


def quantile(share: float, histogram: str, window: str = RATE) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{window})))"
