"""The pictures of the documentation, made from a finished run: its live display in the middle, and its report.

`PYTHONPATH=tests python -m support.cli.pictures RUN_DIR docs/images` writes display.svg, and report.png if there is
a Chromium.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from rljob_api.control import EngineState, EngineStatus, Incident, RunState, Status
from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob
from rljob_api.sizing.topology import topology
from rljob_cli.terminal.display import export_svg
from rljob_cli.terminal.panels import View, run_facts
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.progress import ProgressHolder
from rljob_trainer.reporting.records import EngineRecord, Record, RunRecord, StepRecord

SHOWN = 2 / 3
"""share of the steps that are done in the picture of the display"""
COLUMNS = 100
BEFORE_ROLLOUT = ("evaluate", "checkpoint")
"""phases that a step's record counts although they belong to the step before"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1200, 1300
"""largest picture of the report [px]; it ends between two rows of the page"""
BROWSER_S = 120
WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""what rich refers to on a host of fonts; the picture shall look the same without a network"""


def main(run: Path, images: Path) -> None:
    """Write the pictures; end with a message if one cannot be made."""
    images.mkdir(parents=True, exist_ok=True)
    job = load((run / "manifest.yaml").read_text())
    draw_display(middle(job, tuple(read_events(run / "events.jsonl"))), images / "display.svg")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"report.png not written: none of {', '.join(BROWSERS)} is installed")
    photograph(browser, run / "report.html", images / "report.png")


def middle(job: RLJob, records: Sequence[Record]) -> View:
    """Return what `rljob run` showed after two thirds of the steps, in the middle of the rollout that followed."""
    index, following = next(
        (index, record)
        for index, record in enumerate(records)
        if isinstance(record, StepRecord) and record.step > job.spec.training.steps * SHOWN
    )
    since = following.time - sum(
        seconds for phase, seconds in following.phase_seconds.items() if phase not in BEFORE_ROLLOUT
    )
    seen = records[:index]
    step_seen = max(record.time for record in seen if isinstance(record, StepRecord))
    return View(
        facts=run_facts(job, Path("runs") / job.metadata.name),
        status=status(job, seen, since),
        began=records[0].time,
        step_seen=step_seen,
        now=since + following.phase_seconds["rollout"] / 2,
    )


def status(job: RLJob, records: Sequence[Record], rollout_since: float) -> Status:
    """Return what the driver said of itself during a rollout, after all that is recorded."""
    holder = ProgressHolder()
    for record in records:
        holder.record(record)
    progress = holder.progress
    # A failure is recorded again when more is known of it.
    failures = {(each.engine, each.generation): each for each in records if isinstance(each, EngineRecord)}
    incidents = tuple(incident(record) for record in failures.values())
    return Status(
        attempt=sum(isinstance(record, RunRecord) for record in records),
        state=RunState.RUNNING,
        phase="rollout",
        phase_since=rollout_since,
        progress=progress,
        engines=tuple(engine(each.name, incidents, progress.weight_version) for each in topology(job.spec).engines),
        checkpoint=holder.checkpoint,
        incidents=incidents,
    )


def incident(record: EngineRecord) -> Incident:
    return Incident(
        time=record.time,
        engine=record.engine,
        generation=record.generation,
        error=record.error,
        detect_seconds=record.detect_seconds,
        reroute_seconds=record.reroute_seconds,
        return_seconds=record.return_seconds,
    )


def engine(name: str, incidents: Sequence[Incident], version: int | None) -> EngineStatus:
    own = [each for each in incidents if each.engine == name]
    serves = all(each.return_seconds is not None for each in own)
    return EngineStatus(
        name=name,
        state=EngineState.HEALTHY if serves else EngineState.STARTING,
        since=0.0,
        version=version if serves else None,
        restarts=len(own),
    )


def draw_display(view: View, path: Path) -> None:
    export_svg(view, path, COLUMNS)
    lines = WEB_FONT.sub("", path.read_text()).splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def photograph(browser: str, page: Path, path: Path) -> None:
    """Write a picture of the page's upper part, cut at the last row of pixels that has only one colour."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--hide-scrollbars", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses root
        command += ["--force-device-scale-factor=1", f"--window-size={WIDTH},{HEIGHT}"]
        command += [f"--screenshot={path.resolve()}", page.resolve().as_uri()]
        subprocess.run(command, check=True, timeout=BROWSER_S, stderr=subprocess.DEVNULL)
    with Image.open(path) as picture:
        rows = (picture.crop((0, row, WIDTH, row + 1)) for row in range(HEIGHT))
        last = max(row for row, pixels in enumerate(rows) if pixels.getcolors(1))
        picture.crop((0, 0, WIDTH, last)).convert("P", palette=Image.Palette.ADAPTIVE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
