"""What all jobs and engines do now, from the jobs' status alone. Pure: `now` is given."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_api.control import EngineState
from rljob_api.status import JobEngine
from rljob_cli.jobs.job_table import NOTHING, phase_text, plain_table, shown_name
from rljob_cli.jobs.jobs import Job
from rljob_cli.terminal.formats import age, rate, seconds
from rljob_cli.terminal.panels import STATE_STYLES

JOB_COLUMNS = (
    "JOB",
    "PHASE",
    "STEP",
    "TIME",
    "ROLLOUT",
    "TRAIN",
    "PUBLISH",
    "TOK/S",
    "ENGINES",
    "GPUS",
)
"""TIME is that of the last step, of which ROLLOUT, TRAIN and PUBLISH are parts; TOK/S are made by the engines"""
ENGINE_COLUMNS = ("JOB", "ENGINE", "STATE", "FOR", "WEIGHTS", "BEHIND", "RESTARTS", "LAST ERROR")
LEFT = frozenset({"JOB", "PHASE", "ENGINE", "STATE", "LAST ERROR"})
SHOWN_ENGINES = 40
"""rows of the table of engines, those in trouble first"""
LONGEST_ERROR = 60


def as_tables(jobs: Sequence[Job], now: datetime, namespaces: bool) -> RenderableType:
    """Return a line of sums, a table of the jobs that have not ended, and one of their engines."""
    live = [job for job in jobs if not job.has_ended]
    engines = _engines(live)
    parts: list[RenderableType] = [_sums(live)]
    if live:
        parts += ["", _jobs(live, namespaces)]
    if engines:
        parts += ["", _engine_table(engines[:SHOWN_ENGINES], now, namespaces)]
    if len(engines) > SHOWN_ENGINES:
        parts.append(Text(f"and {len(engines) - SHOWN_ENGINES} more engines", style="dim"))
    return Group(*parts)


def _sums(live: Sequence[Job]) -> Text:
    speeds = [job.status.progress.tokens_per_second for job in live if job.status.progress]
    rollout = sum(speed.rollout or 0.0 for speed in speeds if speed)
    gpus = sum(job.status.gpus or 0 for job in live if job.holds_gpus)
    ready, wanted = sum(job.engines_ready for job in live), sum(job.engines_wanted for job in live)
    if not live:
        return Text("no job runs or waits")
    jobs = f"{len(live)} job{'' if len(live) == 1 else 's'} not ended"
    return Text(f"{jobs}, {gpus} GPUs in use, {ready} of {wanted} engines ready, rollout {rate(rollout)} tokens/s")


def _jobs(live: Sequence[Job], namespaces: bool) -> Table:
    table = plain_table(JOB_COLUMNS, set(JOB_COLUMNS) - LEFT)
    for job in live:
        progress = job.status.progress
        speeds = progress.tokens_per_second if progress else None
        phases = progress.step_seconds if progress else None
        table.add_row(
            Text(shown_name(job, namespaces), style="bold"),
            phase_text(job),
            Text(f"{job.step}/{job.steps}"),
            _time(phases.total if phases else None),
            _time(phases.rollout if phases else None),
            _time(phases.train if phases else None),
            _time(phases.publish if phases else None),
            Text(rate(speeds.rollout if speeds else None)),
            Text(f"{job.engines_ready}/{job.engines_wanted}", style="yellow" if job.unwell else ""),
            Text(NOTHING if job.status.gpus is None else str(job.status.gpus)),
        )
    return table


def _engines(live: Sequence[Job]) -> list[tuple[Job, JobEngine]]:
    pairs = [(job, engine) for job in live if job.status.engines for engine in job.status.engines.items]
    return sorted(pairs, key=lambda pair: pair[1].state is EngineState.HEALTHY)


def _engine_table(engines: Sequence[tuple[Job, JobEngine]], now: datetime, namespaces: bool) -> Table:
    table = plain_table(ENGINE_COLUMNS, set(ENGINE_COLUMNS) - LEFT)
    for job, engine in engines:
        error = (engine.last_error or "").partition("\n")[0]
        table.add_row(
            Text(shown_name(job, namespaces)),
            Text(engine.name),
            Text(engine.state, style=STATE_STYLES[engine.state]),
            Text(age((now - engine.since).total_seconds())),
            Text(NOTHING if engine.version is None else str(engine.version)),
            _behind(job, engine),
            Text(str(engine.restarts), style="yellow" if engine.restarts else ""),
            Text(error if len(error) <= LONGEST_ERROR else f"{error[: LONGEST_ERROR - 1]}…", style="dim"),
        )
    return table


def _behind(job: Job, engine: JobEngine) -> Text:
    """Return how many versions an engine's weights are older than the newest of its job."""
    newest = job.status.progress.weight_version if job.status.progress else None
    if newest is None or engine.version is None:
        return Text(NOTHING)
    behind = max(0, newest - engine.version)
    return Text(str(behind), style="yellow" if behind else "")


def _time(value: float | None) -> Text:
    return Text(NOTHING if value is None else seconds(value))
