"""One RLJob on a page: where it is and why, how it goes, what failed and what was done, what to do next. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rljob_api import recovery
from rljob_api.control import EngineState
from rljob_api.status import AttemptStatus, ConditionType, JobEngine, RecoveryStep
from rljob_cli.jobs.job_table import fraction, phase_text
from rljob_cli.jobs.jobs import Job
from rljob_cli.jobs.next_steps import NextStep, next_steps
from rljob_cli.terminal.formats import ASCII_SPARKS, SPARKS, age, rate, seconds, spark
from rljob_cli.terminal.panels import STATE_STYLES

BAR = 30
"""columns of the bar, and at most of a spark line"""
SHOWN_ENGINES = 8
SHOWN_ATTEMPTS = 3
SHOWN_STEPS = 5
SHOWN_NODES = 8

DONE = {
    "RestartEngine": "restarted",
    "RestartRouter": "restarted",
    "ReplacePod": "replaced",
    "RestartDriver": "started on the same pods",
    "ReplaceCluster": "started on new pods",
    "AvoidNodes": "chose its nodes",
    "DeleteCluster": "deleted, because its driver did not stop",
    "GiveUp": "gave up",
}


def as_page(job: Job, now: datetime, bars: bool, ascii_only: bool) -> RenderableType:
    """Return the page; `bars`: with a progress bar, which says nothing without colours."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, content in _rows(job, now, bars, ASCII_SPARKS if ascii_only else SPARKS):
        rows.add_row(name, content)
    return Group(_title(job, now), Text(job.explanation), rows)


def _title(job: Job, now: datetime) -> Text:
    since = job.status.phase_since
    held = f" for {_since(since, now)}" if since else ""
    title = Text.assemble((job.key, "bold"), "  ", phase_text(job), held)
    return (
        title.append("  the operator has not seen the newest change yet", "yellow")
        if job.status.phase and job.is_outdated
        else title
    )


def _rows(job: Job, now: datetime, bars: bool, marks: str) -> Iterator[tuple[str, RenderableType]]:
    status, progress = job.status, job.status.progress
    yield "", ""
    yield "step", _progress(job, bars)
    yield from _curve("reward", [point.reward for point in status.curve], marks)
    yield from _curve("held-out", [point.accuracy for point in status.curve], marks)
    yield from _curve("perplexity", [point.perplexity for point in status.curve], marks)
    yield from _curve("held-out", [point.held_out_perplexity for point in status.curve], marks)
    if progress and progress.evaluation_sets:
        yield "sets", Text("  ".join(f"{name} {value:.2f}" for name, value in progress.evaluation_sets.items()))
    if (sound := job.condition(ConditionType.SOUND)) and sound.status == "False":
        yield "found", Text(sound.message, style="yellow")
    if progress and progress.waits_for:
        yield "waits for", Text(progress.waits_for, style="yellow")
    if progress and progress.goodput:
        yield "time", Text(str(progress.goodput))
    if progress and progress.losses:
        yield "lost", Text("  ".join(f"{cause} {number}" for cause, number in progress.losses.items()))
    if progress and progress.tokens_per_second:
        speeds = progress.tokens_per_second
        yield "tokens/s", Text(f"rollout {rate(speeds.rollout)}   train {rate(speeds.train)}")
    if progress and progress.step_seconds:
        phases = progress.step_seconds
        named = {"rollout": phases.rollout, "train": phases.train, "publish": phases.publish}
        parts = "  ".join(f"{name} {seconds(value)}" for name, value in named.items() if value is not None)
        yield "a step", Text(f"{seconds(phases.total)}: {parts}")
    yield from _named("engines", _engines(job, now))
    if status.gpus is not None:
        yield "gpus", Text(_gpus(job, status.gpus))
    if job.nodes:
        yield "nodes", Text(_shortened(job.nodes))
    if job.avoided:
        yield "avoids", Text(_shortened(job.avoided), style="yellow")
    yield from _named("attempts", (_attempt(each, now) for each in reversed(status.attempts[-SHOWN_ATTEMPTS:])))
    yield from _named("recovery", (_done(each, now) for each in reversed(status.recovery[-SHOWN_STEPS:])))
    if saved := status.last_checkpoint:
        unsure = "" if saved.verified else ", not verified"
        yield "saved", Text(f"step {saved.step}, {_since(saved.time, now)} ago{unsure}: {saved.path}")
    if status.directory:
        yield "files", Text(status.directory)
    yield "", ""
    yield from _named("next", (_next(step) for step in next_steps(job, now)))


def _gpus(job: Job, gpus: int) -> str:
    """Return whether the GPUs that the spec asks for are in use."""
    if job.holds_gpus:
        return f"{gpus} in use"
    if job.has_ended:
        return f"{gpus} were in use" if job.attempt is not None else f"{gpus} were never used"
    return f"none in use; {gpus} wanted"


def _progress(job: Job, bars: bool) -> RenderableType:
    progress = job.status.progress
    eta = progress.eta_seconds if progress and not job.has_ended else None
    done = f"{job.step / job.steps:.0%}" + (f"  eta {seconds(eta)}" if eta is not None else "")
    if not bars:
        return Text(f"{job.step}/{job.steps}  {done}")
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=job.steps, completed=job.step, width=BAR, complete_style="#5b9bf8", finished_style="green")
    row.add_row(Text(f"{job.step}/{job.steps}", style="bold"), bar, Text(done))
    return row


def _curve(name: str, points: list[float | None], marks: str) -> Iterator[tuple[str, Text]]:
    values = [value for value in points if value is not None]
    if values:
        change = f"{fraction(values[0])} → {fraction(values[-1])}" if len(values) > 1 else fraction(values[0])
        yield name, Text.assemble((change, "bold"), "  ", (spark(values, BAR, marks), "#5b9bf8"))


def _engines(job: Job, now: datetime) -> Iterator[Text]:
    if job.has_ended:
        return
    yield Text(f"{job.engines_ready} of {job.engines_wanted} ready")
    items = job.status.engines.items if job.status.engines else ()
    # Those in trouble first: with many engines only a few lines are shown.
    order = sorted(items, key=lambda engine: engine.state is EngineState.HEALTHY)
    for engine in sorted(order[:SHOWN_ENGINES], key=lambda engine: engine.name):
        yield _engine(engine, now)
    if len(order) > SHOWN_ENGINES:
        yield Text(f"and {len(order) - SHOWN_ENGINES} more", style="dim")


def _engine(engine: JobEngine, now: datetime) -> Text:
    text = Text.assemble(f"{engine.name}  ", (f"{engine.state:8}", STATE_STYLES[engine.state]))
    text.append(f"  for {_since(engine.since, now)}")
    text.append("  no weights" if engine.version is None else f"  weights {engine.version}")
    if engine.restarts:
        text.append(f"  {engine.restarts} restart{'s'[: engine.restarts - 1]}", style="yellow")
    return text.append(f"  {engine.last_error}", style="dim") if engine.last_error else text


def _attempt(attempt: AttemptStatus, now: datetime) -> Text:
    text = Text.assemble((f"{attempt.number}", "bold"), "  ")
    if attempt.ended is None:
        begun = f"since {_since(attempt.started, now)}" if attempt.started else "not started yet"
        return text.append(f"{begun}, on {attempt.cluster}")
    code = "" if attempt.exit_code is None else f" with {attempt.exit_code}"
    why = attempt.reason or (recovery.reason_of(attempt.exit_code) if attempt.exit_code is not None else "")
    text.append(f"ended {_since(attempt.ended, now)} ago{code}: {why}")
    text.append("" if attempt.checkpoint_step is None else f"; saved step {attempt.checkpoint_step}")
    if attempt.failure is not None:
        text.append(f"\n   {attempt.failure.code}: ", "bold").append(
            f"{attempt.failure.title}. {attempt.failure.remedy}"
        )
    return text


def _done(step: RecoveryStep, now: datetime) -> Text:
    target = "" if step.action == "GiveUp" else f"{step.target} "
    text = Text.assemble((f"{_since(step.time, now)} ago  ", "dim"), f"{target}{DONE[step.action]}: {step.cause}")
    return text.append(f"; recovered after {seconds(step.seconds)}", "green") if step.seconds is not None else text


def _next(step: NextStep) -> Text:
    text = Text(step.text)
    return text.append(": ").append(step.command, "bold cyan") if step.command else text


def _shortened(names: Sequence[str]) -> str:
    more = f"  and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return "  ".join(names[:SHOWN_NODES]) + more


def _since(then: datetime, now: datetime) -> str:
    return age((now - then).total_seconds())


def _named(name: str, contents: Iterable[Text]) -> Iterator[tuple[str, Text]]:
    for index, content in enumerate(contents):
        yield "" if index else name, content
