"""Writes the dashboards into the chart: `make generate`."""

from dashboards.files import DASHBOARDS, TARGET
from dashboards.grafana import text

for name, dashboard in DASHBOARDS.items():
    (TARGET / f"{name}.json").write_text(text(dashboard))
