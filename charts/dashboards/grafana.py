"""From a dashboard to the JSON that Grafana imports: one line of facts about a panel is sixty lines of JSON."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dashboards.panel import Dashboard, Panel, Row, Variable

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

Json = dict[str, Any]


def rendered(dashboard: Dashboard) -> Json:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["rljob"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(each) for each in dashboard.variables)]},
        "links": [{"type": "dashboards", "title": "RLJob", "tags": ["rljob"], "includeVars": True, "keepTime": True}],
        "panels": [{"id": number, **panel} for number, panel in enumerate(_placed(dashboard.rows), 1)],
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    """Return titles and panels from left to right, each row below the last one."""
    y = 0
    for row in rows:
        yield {
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }
        y, x = y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + panel.height
            yield _panel(panel, x, y)
            x += panel.width
        y += row.panels[-1].height


def _panel(panel: Panel, x: int, y: int) -> Json:
    steps = panel.thresholds or {0.0: "green"}
    defaults: Json = {
        "unit": panel.unit,
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value or None} for value, color in steps.items()],
        },
    }
    low, high = panel.limits
    defaults |= {name: limit for name, limit in (("min", low), ("max", high)) if limit is not None}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 5,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    else:
        defaults["color"] = {"mode": "thresholds"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto"}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    named = any("{{" in legend for legend in panel.queries)
    return {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "textMode": "name" if named else "auto",
        "colorMode": "value",
        "graphMode": "none",
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> Json:
    everything = {"includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return {
        "name": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({variable.series}, {variable.label})", "refId": variable.label},
        "refresh": 2,
        "sort": 1,
        **(everything if variable.everything else {}),
    }


def text(dashboard: Dashboard) -> str:
    """Return the file."""
    return json.dumps(rendered(dashboard), indent=1, ensure_ascii=False) + "\n"
