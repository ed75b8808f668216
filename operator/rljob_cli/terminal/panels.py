"""What the live display of `rljob run` looks like: a driver's status as one rich renderable. Pure: `now` is given."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from rljob_api.control import AccuracyPoint, EngineState, EngineStatus, Finding, Incident, Progress, RunState, Status
from rljob_api.sections import RLJob, Source
from rljob_cli.terminal.formats import ASCII_SPARKS, SPARKS, rate, seconds, spark, widths

PHASE_COLOURS: Mapping[str, str] = {
    "rollout": "#5b9bf8",
    "train": "#f09a43",
    "publish": "#4fbf83",
    "reward": "#3fc3c7",
    "advantage": "#bba98f",
    "report": "#98a1ac",
    "checkpoint": "#b08cf0",
    "evaluate": "#ee86b7",
    "start": "#d6bd45",
    "load": "#9cc052",
    "stop": "#b8938c",
}
OTHER_COLOUR = "#7a828c"
"""the same hues as in the HTML report"""

STATE_STYLES: Mapping[EngineState, str] = {
    EngineState.HEALTHY: "green",
    EngineState.SUSPECT: "yellow",
    EngineState.STALE: "cyan",
    EngineState.STARTING: "cyan",
    EngineState.DEAD: "bold red",
    EngineState.LEAVING: "dim",
    EngineState.UNKNOWN: "dim",
}
RUN_STYLES: Mapping[RunState, str] = {
    RunState.STARTING: "dim",
    RunState.RUNNING: "dim",
    RunState.DRAINING: "yellow",
    RunState.FINISHED: "green",
    RunState.FAILED: "bold red",
}
FRAME = 17
"""columns of a line that are not content: border, name, gaps"""
HELD_OUT_TEXT = 46
"""columns of the held-out line without its spark lines"""
SHOWN_INCIDENTS = 3
SHOWN_ENGINES = 8
NAMED_SHARE = 0.02
"""phases below this share of a step are in the bar but not named"""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What does not change during a run."""

    name: str
    model: str
    task: str
    steps: int
    directory: Path


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a picture is made of."""

    facts: RunFacts
    status: Status | None
    """None: the driver has not said anything yet"""
    began: float
    """when the display began [unix s]"""
    step_seen: float
    """when the last step was seen to be finished [unix s]"""
    now: float


def run_facts(job: RLJob, directory: Path) -> RunFacts:
    """Return what the manifest says about a run."""
    return RunFacts(
        name=job.metadata.name,
        model=job.spec.model.checkpoint.rstrip("/").rsplit("/", 1)[-1],
        task=_task(job.spec.data.train),
        steps=job.spec.training.steps,
        directory=directory,
    )


def picture(view: View, width: int, ascii_only: bool = False) -> RenderableType:
    """Return the display for a terminal of some columns, 40 or more; no line wraps."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    status = view.status
    if status is None:
        rows.add_row("driver", Text(f"starting, {seconds(view.now - view.began)}"))
        rows.add_row("files", Text(str(view.facts.directory)))
    else:
        marks = ASCII_SPARKS if ascii_only else SPARKS
        for name, content in _rows(view, status, width - FRAME, marks):
            rows.add_row(name, content)
    title = Text.assemble(
        (view.facts.name, "bold not dim"), (f"  {view.facts.model} learns {view.facts.task}", "not dim")
    )
    return Panel(rows, title=title, title_align="left", border_style="dim", padding=(0, 1))


def eta(status: Status, since_step: float) -> float | None:
    """Return the remaining time, counted down since the last step [s]; the steps after this one are still to come."""
    expected = status.progress.eta_seconds
    left = status.progress.steps - status.progress.step
    if expected is None or left <= 0:
        return None
    return max(expected - since_step, expected * (left - 1) / left)


def _rows(view: View, status: Status, room: int, marks: str) -> Iterator[tuple[str, RenderableType]]:
    progress = status.progress
    yield "step", _step_row(view, status)
    yield "now", _now_row(view, status)
    yield "", ""
    if progress.rewards:
        yield "reward", _reward(progress, room, marks)
    if progress.accuracy_sampled or progress.accuracy_greedy:
        yield "held-out", _held_out(progress, room, marks)
    if progress.perplexities:
        yield "perplexity", _curve(progress.perplexities, room, marks)
    if progress.held_out_perplexity:
        yield "held-out", _curve([point.perplexity for point in progress.held_out_perplexity], room, marks)
    if progress.evaluation_sets:
        yield "sets", Text("  ".join(f"{name} {each.sampled:.2f}" for name, each in progress.evaluation_sets.items()))
    if progress.last_step_seconds:
        speeds = progress.tokens_per_second
        yield "tokens/s", Text(f"rollout {rate(speeds.rollout)}   train {rate(speeds.train)}")
        yield f"{seconds(sum(progress.last_step_seconds.values()))} step", _PhaseBar(progress.last_step_seconds)
        yield "", _phase_names(progress.last_step_seconds)
        yield "", ""
    if progress.goodput:
        yield "time", Text(str(progress.goodput))
    yield from _named("engines" if len(status.engines) > 1 else "engine", _engines(status.engines))
    yield from _named("failures", (_incident(each) for each in status.incidents[-SHOWN_INCIDENTS:]))
    yield from _named("findings", (line for each in status.findings for line in _finding(each)))
    if status.checkpoint:
        unsure = "" if status.checkpoint.verified else ", not verified"
        yield "saved", Text(f"step {status.checkpoint.step}{unsure}  {Path(status.checkpoint.path).name}")
    yield "files", Text(str(view.facts.directory))
    if status.exit_reason or status.result:
        yield "", ""
        yield "ended", Text(status.result or status.exit_reason or "", style="bold")


def _step_row(view: View, status: Status) -> RenderableType:
    progress = status.progress
    steps = progress.steps or view.facts.steps
    remaining = eta(status, view.now - view.step_seen)
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    bar = ProgressBar(total=steps, completed=progress.step, complete_style="#5b9bf8", finished_style="green")
    ending = f"eta {seconds(remaining)}" if remaining is not None else f"{progress.step / steps:.0%}"
    row.add_row(Text(f"{progress.step}/{steps}", style="bold"), bar, Text(ending, style="bold"))
    return row


def _now_row(view: View, status: Status) -> Text:
    text = Text.assemble(
        (status.phase, f"bold {_colour(status.phase)}"), f" {seconds(max(0.0, view.now - status.phase_since))}"
    )
    text.append(f"   {status.state}", style=RUN_STYLES[status.state])
    text.append(f"   {seconds(view.now - view.began)} in all", style="dim")
    if status.attempt > 1:
        text.append(f"   driver start {status.attempt}", style="yellow")
    return text


def _reward(progress: Progress, room: int, marks: str) -> Text:
    last = f"{progress.rewards[-1]:.2f}  "
    return Text.assemble((last, "bold"), (spark(progress.rewards, room - len(last), marks), "#5b9bf8"))


def _curve(values: Sequence[float], room: int, marks: str) -> Text:
    change = f"{values[0]:.3g} → {values[-1]:.3g}  " if len(values) > 1 else f"{values[-1]:.3g}  "
    return Text.assemble((change, "bold"), (spark(values, room - len(change), marks), "#5b9bf8"))


def _held_out(progress: Progress, room: int, marks: str) -> Text:
    columns = max(0, (room - HELD_OUT_TEXT) // 2)
    parts = [
        Text.assemble(
            (_change(points), "bold"),
            f" {name} ",
            (spark([point.accuracy for point in points], columns, marks), colour),
        )
        for name, points, colour in (
            ("sampled", progress.accuracy_sampled, "#5b9bf8"),
            ("greedy", progress.accuracy_greedy, "#f09a43"),
        )
        if points
    ]
    return Text("   ").join(parts)


def _change(points: tuple[AccuracyPoint, ...]) -> str:
    first, last = points[0].accuracy, points[-1].accuracy
    return f"{first:.2f} → {last:.2f}" if len(points) > 1 else f"{last:.2f}"


def _phase_names(phases: Mapping[str, float]) -> Text:
    total = sum(phases.values())
    named = [
        Text.assemble((name, _colour(name)), f" {seconds(value)}")
        for name, value in phases.items()
        if value >= NAMED_SHARE * total
    ]
    return Text("  ").join(named)


def _engines(engines: tuple[EngineStatus, ...]) -> Iterator[Text]:
    # Those in trouble first: with many engines only a few lines are shown.
    order = sorted(engines, key=lambda engine: engine.state is EngineState.HEALTHY)
    for engine in sorted(order[:SHOWN_ENGINES], key=lambda engine: engine.name):
        text = Text.assemble(f"{engine.name}  ", (f"{engine.state:8}", STATE_STYLES[engine.state]))
        text.append("  no weights" if engine.version is None else f"  weights {engine.version}")
        if engine.restarts:
            text.append(f"  {engine.restarts} restart{'s'[: engine.restarts - 1]}", style="yellow")
        if engine.state is not EngineState.HEALTHY and engine.last_error:
            text.append(f"  {engine.last_error}", style="dim")
        yield text
    if len(order) > SHOWN_ENGINES:
        healthy = sum(engine.state is EngineState.HEALTHY for engine in engines)
        yield Text(f"{healthy} of {len(engines)} healthy", style="dim")


def _incident(incident: Incident) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(incident.time))
    text = Text.assemble((f"{at} ", "dim"), f"{incident.engine}  ")
    if incident.return_seconds is None:
        text.append("not back yet", style="yellow")
    else:
        text.append(f"back after {seconds(incident.return_seconds)}", style="green")
    return text.append(f"  {incident.error}", style="dim")


def _finding(finding: Finding) -> Iterator[Text]:
    yield Text.assemble((finding.name, "bold yellow"), f"  {finding.evidence}")
    yield Text(f"  {finding.advice}", style="dim")


def _named(name: str, contents: Iterable[Text]) -> Iterator[tuple[str, Text]]:
    for index, content in enumerate(contents):
        yield "" if index else name, content


def _colour(phase: str) -> str:
    return PHASE_COLOURS.get(phase, OTHER_COLOUR)


def _task(source: Source) -> str:
    if source.reasoning_gym is not None:
        return source.reasoning_gym.task
    return Path(source.jsonl or source.parquet or "").stem


class _PhaseBar:
    """The phases of a step, side by side, as wide as there is room."""

    def __init__(self, phases: Mapping[str, float]) -> None:
        self._phases = phases

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for name, columns in widths(self._phases, options.max_width).items():
            mark = name[0] if options.ascii_only else " "
            yield Segment(mark * columns, Style.parse(f"black on {_colour(name)}"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(10, options.max_width)
