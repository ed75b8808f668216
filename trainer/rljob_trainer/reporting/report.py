"""Passes the events of loop, engine pool and driver to every sink.

loop ─ step, evaluation ─┐              ┌─► events.jsonl ─► report.html
pool ─ incident, engines ┼─► Report ────┼─► TensorBoard
driver ─ end ────────────┘              ├─► Prometheus
                                        └─► status board ─► control server ─► `rljob run`, the operator
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rljob_api.control import Finding, Incident, Progress, SavedCheckpoint
from rljob_api.foreign_text import said
from rljob_api.sections import RLJob, Source, Wandb
from rljob_api.sizing.topology import topology
from rljob_trainer.gpu_metrics import GpuUse, LostMetrics
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.reporting.errors import TrackingError
from rljob_trainer.reporting.events import FILE_NAME, EventLog, Lost, rewind
from rljob_trainer.reporting.gpu_sample import sampled
from rljob_trainer.reporting.measurements import chosen_samples, nonfinite_logprobs, step_metrics
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.progress import ProgressHolder
from rljob_trainer.reporting.prometheus import Metrics
from rljob_trainer.reporting.records import (
    SETUP,
    AccuracyRecord,
    CheckpointRecord,
    CheckRecord,
    EndRecord,
    EngineRecord,
    EvaluationRecord,
    FindingRecord,
    FirstStepRecord,
    PerplexityRecord,
    ReadyRecord,
    Record,
    RenderedRecord,
    RunRecord,
    SamplesRecord,
    Sink,
    StepRecord,
)
from rljob_trainer.reporting.summaries import SUMMARY_EVERY, recall, summary
from rljob_trainer.reporting.tensorboard import TensorBoard
from rljob_trainer.reporting.watch import AnomalyMonitor, anomaly_monitor
from rljob_trainer.samples import ScoredGroup

log = logging.getLogger(__name__)

TENSORBOARD: Final = "tensorboard"
SAMPLED_STEPS: Final = 20
"""approximate number of steps of a run whose samples are kept"""
SAMPLED_GROUPS: Final = 4


class Report:
    """Passes records to all sinks in the same order. Any thread may call it; `now` is unix time [s]."""

    def __init__(
        self,
        job: RLJob,
        phases: Phases,
        now: Callable[[], float],
        metrics: Metrics,
        watching: AnomalyMonitor,
        files: "RunFiles",
    ) -> None:
        self._job = job
        self._steps = job.spec.training.steps
        self._step = 0
        self._phases = phases
        self._now = now
        self._progress = ProgressHolder()
        self._metrics = metrics
        self._watching = watching
        self._files = files
        self._sinks: tuple[Sink, ...] = (metrics,)
        self._opened: Sequence[Sink] = ()
        """the first of the sinks: those that know all steps, and begin anew with each start"""
        self._gpus: Callable[[], Mapping[str, GpuUse]] = dict
        self._lost: Callable[[], LostMetrics] = LostMetrics
        self._upload_fails = False
        self._lock = threading.Lock()

    def also_to(self, sink: Sink) -> None:
        """Pass all later records to one more sink."""
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def with_gpus(self, gpus: Callable[[], Mapping[str, GpuUse]]) -> None:
        """Record what `gpus` returns with each later step: the use of each GPU since its last call."""
        self._gpus = gpus

    def with_losses(self, lost: Callable[[], LostMetrics]) -> None:
        """Record what `lost` returns with each later step: what was lost since its last call."""
        self._lost = lost

    def progress(self) -> Progress:
        """Return the current progress."""
        return self._progress.progress

    def saved(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint."""
        return self._progress.checkpoint

    def findings(self) -> tuple[Finding, ...]:
        """Return the current anomalies."""
        return self._watching.standing

    def render_metrics(self) -> tuple[str, bytes]:
        """Return content type and body of the Prometheus endpoint."""
        return self._metrics.render()

    def run(self, attempt: int, resumed_from: int) -> None:
        """Report that the driver starts, or starts again in the same process, and the step that it resumes from.

        Records of later steps are dropped, because those steps are repeated. The others fill the progress.
        """
        begun, given_up, progress = bool(self._opened), self._phases.lap(), ProgressHolder()
        with self._lock:
            for sink in self._opened:
                sink.close()
            lost = self._files.rewound(resumed_from)
            watching = anomaly_monitor(self._job.spec) if begun else self._watching  # that one has seen all steps
            self._files.recalled(progress, watching)
            others = self._sinks[len(self._opened) :]
            self._opened, self._progress = (*self._files.opened(resumed_from), progress), progress
            self._sinks = (*self._opened, *others)
        if begun:  # the step that was under way is lost, too
            lost, given_up = replace(lost, seconds=lost.seconds + sum(given_up.values())), {}
        self._step = resumed_from
        self._record(
            RunRecord(
                time=self._now(),
                job=self._job.metadata.name,
                model=_last_part(self._job.spec.model.checkpoint),
                task=_task(self._job.spec.data.train),
                steps=self._steps,
                attempt=attempt,
                step=resumed_from,
                new_ranks=begun,
                lost_steps=lost.steps,
                lost_seconds=lost.seconds,
                gpus=topology(self._job.spec).gpus,
                gpus_per_engine=self._job.spec.rollout.gpus_per_engine,
                manifest=self._job.model_dump(mode="json", by_alias=True, exclude_none=True),
                phase_seconds=given_up,
            )
        )

    def step(
        self,
        step: int,
        groups: Sequence[ScoredGroup],
        training: LearnerMetrics,
        publication: Publication,
        dropped: Sequence[ScoredGroup] = (),
    ) -> None:
        """Report a step; its time is the time since the last one, without the driver's start."""
        now, lap = self._now(), self._phases.lap()
        if setup := {phase: lap.pop(phase) for phase in SETUP & lap.keys()}:
            self._record(ReadyRecord(time=now, step=self._step, phase_seconds=setup))
        self._step = step
        newest = step - 1 if self._job.spec.ahead else None
        metrics = step_metrics(groups, training, publication, dropped, newest)
        measured = {**vars(metrics), **vars(self._lost()), "phase_seconds": lap, "gpus": self._gpus()}
        whole = StepRecord(**measured, time=now, step=step)
        gpus, gpu_summary = sampled(whole.gpus)
        self._record(whole.model_copy(update={"gpus": gpus, "gpu_summary": gpu_summary}))
        for engine, tokens in nonfinite_logprobs((*groups, *dropped)).items():
            log.warning("action=count_nonfinite_logprobs step=%d engine=%s tokens=%d", step, engine, tokens)
        for finding in self._watching.after(whole):
            self.found(finding, step)
        if shows_samples(step, self._steps):
            self._record(SamplesRecord(time=now, step=step, samples=chosen_samples(groups, SAMPLED_GROUPS)))
        if step % SUMMARY_EVERY == 0:
            with self._lock:  # no record may come between what it says and its place
                self._pass_on(summary(self._progress, self._watching, now, step))

    def uploaded(self, step: int | None, is_failing: bool) -> bool:
        """Show the newest uploaded checkpoint, and whether uploads fail; return whether that changed."""
        changed, self._upload_fails = is_failing != self._upload_fails, is_failing
        self._metrics.uploaded(step, is_failing)
        return changed

    def found(self, finding: Finding, step: int) -> None:
        """Report an anomaly."""
        log.warning("action=watch finding=%s evidence=%r advice=%r", finding.name, finding.evidence, finding.advice)
        self._record(FindingRecord(**finding.model_dump(), time=self._now(), step=step))

    def machine_fault(self, finding: Finding) -> None:
        """Report an error of a GPU or of a process at once; it stands until this driver ends."""
        self._watching.note(finding)
        self.found(finding, self._step)

    def first_step(self, fingerprint: str, checks: Sequence[CheckRecord], samples: Sequence[RenderedRecord]) -> None:
        """Report the checks of the first step; a breach is also logged as a warning."""
        for check in checks:
            write = log.warning if check.breached else log.info
            means = f" means={check.means!r}" if check.breached else ""
            write("action=first_step check=%r value=%s limit=%g%s", check.name, check.value, check.limit, means)
        self._record(
            FirstStepRecord(
                time=self._now(),
                checkpoint=self._job.spec.model.checkpoint,
                fingerprint=fingerprint,
                checks=tuple(checks),
                samples=tuple(samples),
            )
        )

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Report an evaluation; nothing without held-out questions."""
        if accuracy.perplexity is not None:
            self._record(
                PerplexityRecord(time=self._now(), step=step, perplexity=accuracy.perplexity, n=accuracy.questions)
            )
        if accuracy.sampled is not None:
            self._record(
                EvaluationRecord(
                    time=self._now(),
                    step=step,
                    sampled=accuracy.sampled,
                    greedy=accuracy.greedy,
                    n=accuracy.questions,
                    reward_failures=accuracy.failures,
                    lost_samples=accuracy.lost,
                    sets={
                        name: AccuracyRecord(sampled=each.sampled, greedy=each.greedy, n=each.questions)
                        for name, each in accuracy.sets.items()
                        if each.sampled is not None
                    },
                )
            )

    def incident(self, incident: Incident, cause: str) -> None:
        """Report a failure of an engine or the router, and again when more is known of it (reroute, return)."""
        self._record(
            EngineRecord(
                time=incident.time,
                step=self._step,
                engine=incident.engine,
                generation=incident.generation,
                cause=cause,
                error=incident.error,
                detect_seconds=incident.detect_seconds,
                reroute_seconds=incident.reroute_seconds,
                return_seconds=incident.return_seconds,
            )
        )

    def engines(self, engines_by_state: Mapping[str, int]) -> None:
        """Report the number of engines in each state."""
        self._metrics.engines(engines_by_state)

    def checkpoint(self, step: int, path: Path) -> None:
        """Report a complete and verified checkpoint."""
        self._watching.saved(step)
        self._record(CheckpointRecord(time=self._now(), step=step, path=str(path)))

    def end(self, outcome: str, message: str = "") -> None:
        """Report the end of the run and close all sinks; later calls record nothing."""
        self._record(
            EndRecord(
                time=self._now(),
                step=self._step,
                outcome=outcome,
                message=message,
                phase_seconds=self._phases.lap(),
            )
        )
        with self._lock:
            sinks, self._sinks = self._sinks, ()
            for sink in sinks:
                sink.close()

    def _record(self, record: Record) -> None:
        with self._lock:
            self._pass_on(record)

    def _pass_on(self, record: Record) -> None:
        for sink in self._sinks:
            try:
                sink.record(record)
            except OSError as error:  # nothing that is trained depends on a sink
                log.warning("action=record sink=%s outcome=lost reason=%s", type(sink).__name__, said(error))


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run's directory that have a record of each step."""

    directory: Path
    tensorboard: bool

    def rewound(self, step: int) -> Lost:
        """Drop what was recorded after a step; return the work that is lost with it."""
        return rewind(self._events, step)

    def recalled(self, progress: ProgressHolder, watching: AnomalyMonitor) -> None:
        """Let the two know what is recorded."""
        recall(self._events, progress, watching)

    def opened(self, step: int) -> Sequence[Sink]:
        """Open the files for what follows a step."""
        events = EventLog(self._events)
        return (events, TensorBoard(self.directory / TENSORBOARD, step)) if self.tensorboard else (events,)

    @property
    def _events(self) -> Path:
        return self.directory / FILE_NAME


def open_report(
    directory: Path, job: RLJob, phases: Phases, now: Callable[[], float], attempt: int, resumed_from: int
) -> Report:
    """Return the report of a run directory for a run that resumes from step `resumed_from`.

    A restarted driver shows rewards and accuracies of the attempts before it.
    """
    metrics = Metrics(
        phases,
        topology(job.spec).gpus,
        [part.name for part in job.spec.reward.judgings],
        [each.name for each in job.spec.data.evaluation_sets],
        lambda: report.progress().goodput,
        directory,
    )
    files = RunFiles(directory, job.spec.runtime.tensorboard)
    report = Report(job, phases, now, metrics, anomaly_monitor(job.spec), files)
    report.run(attempt, resumed_from)
    return report


def weights_and_biases(directory: Path, job: RLJob, settings: Wandb) -> Sink:
    """Return the sink, if its package is installed. Raises TrackingError."""
    try:
        from rljob_trainer.reporting.weights_and_biases import WeightsAndBiases
    except ModuleNotFoundError as error:
        raise TrackingError(
            f"spec.tracking.wandb: {error.name} is not installed; install rljob with its extra `wandb`"
        ) from error
    return WeightsAndBiases(directory, job, settings)


def shows_samples(step: int, steps: int) -> bool:
    """Whether the samples of a step are kept: the first, the last, and about twenty in between."""
    return step in (1, steps) or step % -(-steps // SAMPLED_STEPS) == 0


def _task(source: Source) -> str:
    if source.reasoning_gym is not None:
        return source.reasoning_gym.task
    return Path(source.jsonl or source.parquet or "").stem


def _last_part(checkpoint: str) -> str:
    return checkpoint.rstrip("/").rsplit("/", 1)[-1]
