"""Shows the runs of a volume, and what a prune deletes: as tables for people, as JSON for programs. Pure."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_cli.terminal.formats import age, counted, size
from rljob_cli.volume.listing import Listing
from rljob_cli.volume.pruning import Pruning
from rljob_cli.volume.run_directory import RunOnDisk

NOTHING = "–"
COLUMNS = ("RUN", "JOB", "STEPS", "OUTCOME", "SIZE", "OWNER", "CHANGED", "IN USE")
NUMBERS = ("SIZE", "CHANGED")
STYLES = {"finished": "green", "failed": "red", "running": "cyan"}
MOST_GAPS = 5


def as_table(found: Listing, now: float) -> RenderableType:
    """Return the runs, a row each, and their sum."""
    runs = [run.extent.num_bytes for run in found.runs]
    return Group(
        *([_rows(found.directory, found.runs, runs, now)] if runs else []),
        Text(f"{counted(len(runs), 'run')}, {size(sum(runs))}"),
        *_leftovers(found),
        *_gaps(found.gaps),
    )


def as_json(found: Listing, now: float) -> str:
    """Return everything that is known of each run."""
    return _text(
        {
            "directory": str(found.directory),
            "bytes": found.num_bytes,
            "runs": [_value(run, now) for run in found.runs],
            "leftovers": [{"path": str(each.path), "bytes": each.num_bytes} for each in found.leftovers],
            "gaps": list(found.gaps),
        }
    )


def plan_as_table(found: Pruning, now: float) -> RenderableType:
    """Return what is to be deleted, with its bytes, and how many runs stay for which reason."""
    doomed = found.doomed
    rows = _rows(found.listing.directory, [each.run for each in doomed], [each.num_bytes for each in doomed], now)
    what = "all but the last checkpoint, records and logs of " if found.rule.keeps_last else ""
    reasons = Counter(kind_of(each.reason) for each in found.kept)
    return Group(
        *([rows] if doomed else []),
        Text(f"to delete: {what}{counted(len(doomed), 'run')}, {size(found.num_bytes)}", "bold"),
        *_leftovers(found.listing),
        *(Text(f"kept: {counted(number, 'run')}, {reason}") for reason, number in sorted(reasons.items())),
        *_gaps(found.listing.gaps),
    )


def plan_as_json(found: Pruning, deleted: Sequence[Path], failures: Sequence[str]) -> str:
    """Return what was to be deleted, what stays and why, and what was deleted."""
    return _text(
        {
            "directory": str(found.listing.directory),
            "bytes": found.num_bytes,
            "toDelete": [
                {"run": str(each.run.path), "paths": list(map(str, each.paths)), "bytes": each.num_bytes}
                for each in found.doomed
            ],
            "leftovers": [{"path": str(each.path), "bytes": each.num_bytes} for each in found.listing.leftovers],
            "kept": [{"run": str(each.run.path), "reason": each.reason} for each in found.kept],
            "gaps": list(found.listing.gaps),
            "deleted": list(map(str, deleted)),
            "failures": list(failures),
        }
    )


def kind_of(reason: str) -> str:
    """Return a reason without what is special to a run."""
    return "changed too lately" if reason.startswith("was changed") else reason.partition(": ")[0].partition(",")[0]


def _rows(root: Path, runs: Sequence[RunOnDisk], sizes: Sequence[int], now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in COLUMNS:
        is_name = title in ("RUN", "JOB")
        table.add_column(title, justify="right" if title in NUMBERS else "left", no_wrap=not is_name, overflow="fold")
    for run, num_bytes in zip(runs, sizes, strict=True):
        done = run.progress
        table.add_row(
            Text(os.path.relpath(run.path, root)),
            Text(f"{done.namespace}/{done.job}" if done and done.namespace else done.job if done else NOTHING),
            Text(f"{done.step}/{done.steps}" if done else NOTHING),
            Text(run.outcome, STYLES.get(run.outcome, "")),
            Text(f"{'>' if run.extent.gap else ''}{size(num_bytes)}"),
            Text(run.owner),
            Text(age(now - run.extent.changed)),
            Text(run.in_use or NOTHING, "yellow" if run.in_use else ""),
        )
    return table


def _leftovers(found: Listing) -> list[Text]:
    if not found.leftovers:
        return []
    number, num_bytes = len(found.leftovers), sum(each.num_bytes for each in found.leftovers)
    return [Text(f"left by interrupted prunes: {counted(number, 'directory', 'directories')}, {size(num_bytes)}")]


def _gaps(gaps: Sequence[str]) -> list[Text]:
    more = [Text(f"and {len(gaps) - MOST_GAPS} more; -o json shows all")] if len(gaps) > MOST_GAPS else []
    return [*(Text(f"not looked at: {gap}", "yellow") for gap in gaps[:MOST_GAPS]), *more]


def _value(run: RunOnDisk, now: float) -> dict[str, Any]:
    done = run.progress
    return {
        "path": str(run.path),
        "job": done.job if done else None,
        "namespace": done.namespace if done else None,
        "step": done.step if done else None,
        "steps": done.steps if done else None,
        "outcome": run.outcome,
        "bytes": run.extent.num_bytes,
        "owner": run.owner,
        "origin": run.origin,
        "attempt": run.attempt,
        "changed": datetime.fromtimestamp(run.extent.changed, UTC).isoformat(timespec="seconds"),
        "ageSeconds": round(now - run.extent.changed),
        "inUse": run.in_use or None,
        "gap": run.extent.gap or None,
    }


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
