"""The operator's own metrics, in the Prometheus format. Those of a training run come from its driver.

A standby shows the same series, all of them 0: it has an empty cache and does nothing.
"""

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_api.exits import Exit
from rljob_api.recovery import RestartEngine
from rljob_api.status import Phase, Status
from rljob_operator.attempts.diagnosis import IN_ORDER
from rljob_operator.cache.cache import Cache, Key
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.requests import Requests
from rljob_operator.drivers.sender import Order, Submit
from rljob_operator.identity import Manifest
from rljob_operator.runtime.loop_lag import LoopLag
from rljob_operator.status.job_rows import NEW, UNKNOWN, JobRow
from rljob_operator.status.waiting import BLOCKERS

BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
START_BUCKETS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)
ERRORS = ("ClusterError", "ConflictError")
ORDERS = ("Submit", "Stop", "Drain", "RestartEngine", "Scale")
ENDED = (Phase.SUCCEEDED, Phase.FAILED)
FAILING_S = 600.0
"""a job whose looks have all failed for so long is shown [s]"""


class Metrics:
    """All series, in a separate registry."""

    def __init__(
        self, cache: Cache, queue: WorkQueue, watches: WatchLiveness, requests: Requests, release: str
    ) -> None:
        """`release` is this operator's: jobs of another one are not shown."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("rljob_operator_build", "Version of the operator", registry=registry).info({"version": version("rljob")})
        self.reconcile_seconds = Histogram(
            "rljob_operator_reconcile_seconds", "Duration of a reconcile", buckets=BUCKETS_S, registry=registry
        )
        self.reconcile_errors = Counter(
            "rljob_operator_reconcile_errors", "Reconciles that failed, by error", ["error"], registry=registry
        )
        self.unreadable = _unreadable(registry)
        self._submissions = Counter(
            "rljob_operator_driver_submissions", "Drivers that were submitted to Ray", registry=registry
        )
        self._engine_restarts = Counter(
            "rljob_operator_engine_restarts", "Restarts of engines that were ordered", registry=registry
        )
        self._order_failures = Counter(
            "rljob_operator_order_failures",
            "Orders that Ray or a driver has not accepted, by order; each is tried again",
            ["order"],
            registry=registry,
        )
        self._driver_start_seconds = Histogram(
            "rljob_operator_driver_start_seconds",
            "From when an attempt is due until its driver runs: pods, images, Ray",
            buckets=START_BUCKETS_S,
            registry=registry,
        )
        self._driver_exits = Counter(
            "rljob_operator_driver_exits",
            "Drivers that ended, by exit code",
            ["reason"],
            registry=registry,
        )
        self._failures = Counter(
            "rljob_operator_failures",
            "Attempts that ended by a failure, by its code in the catalogue; Unknown: none was recognised",
            ["code"],
            registry=registry,
        )
        self._jobs_finished = Counter(
            "rljob_operator_jobs_finished", "Jobs that ended, by how", ["phase"], registry=registry
        )
        self.is_leader = Gauge("rljob_operator_is_leader", "1 while this replica acts", registry=registry)
        self.resync_seconds = Gauge(
            "rljob_operator_resync_seconds", "Duration of the last list of all objects", registry=registry
        )
        self.loop_lag = _loop_lag(registry)
        self._register_queue(queue, watches)
        self.pass_seconds, self.preemptions = _of_reservations(registry)
        self._waiting: dict[Key, str] = {}
        self._register_waiting()
        requests.register(registry)
        registry.register(_Jobs(cache, release))
        self._show_all()

    def _register_queue(self, queue: WorkQueue, watches: WatchLiveness) -> None:
        depth = Gauge("rljob_operator_queue_depth", "Jobs that are due to be looked at", registry=self._registry)
        depth.set_function(lambda: len(queue.waiting_s()))
        oldest = Gauge(
            "rljob_operator_queue_oldest_seconds", "How long the job that waits longest is due", registry=self._registry
        )
        oldest.set_function(lambda: max(queue.waiting_s(), default=0.0))
        text = f"Jobs whose looks have all failed for {FAILING_S / 60:.0f} minutes"
        failing = Gauge("rljob_operator_failing_jobs", text, registry=self._registry)
        failing.set_function(lambda: sum(each >= FAILING_S for each in queue.failing_s()))
        silence = Gauge(
            "rljob_operator_watch_silence_seconds",
            "How long the oldest expected watch event is late",
            registry=self._registry,
        )
        silence.set_function(lambda: watches.silent_s)
        lost = Gauge(
            "rljob_operator_watches_lost",
            "Kinds and namespaces that should be watched, and cannot be read now",
            registry=self._registry,
        )
        lost.set_function(lambda: watches.lost)

    def waits(self, key: Key, blocker: str | None) -> None:
        """Note what a job waits for; None: for nothing."""
        if blocker is None:
            self._waiting.pop(key, None)
        else:
            self._waiting[key] = blocker

    def _register_waiting(self) -> None:
        text = "Jobs that wait before they train, by what for"
        waiting = Gauge("rljob_operator_jobs_waiting", text, ["reason"], registry=self._registry)
        for blocker in BLOCKERS:
            waiting.labels(blocker).set_function(partial(self._count_waiting, blocker))

    def _count_waiting(self, blocker: str) -> float:
        return float(sum(each == blocker for each in tuple(self._waiting.values())))

    def text(self) -> bytes:
        """Return all series as Prometheus reads them; for a thread: with 20,000 jobs there are 100,000 lines.

        What changes meanwhile in the event loop is copied at once, by one operation.
        """
        return generate_latest(self._registry)

    def count(self, old: Manifest, new: Status) -> None:
        """Count the transitions between two statuses of a job."""
        known = {attempt["number"]: attempt for attempt in old.get("attempts", ())}
        for attempt in new.attempts:
            earlier = known.get(attempt.number, {})
            if attempt.started is not None and "started" not in earlier:
                self._driver_start_seconds.observe((attempt.started - attempt.start_after).total_seconds())
            if attempt.ended is not None and "ended" not in earlier:
                self._driver_exits.labels(exit_name(attempt.exit_code)).inc()
                if attempt.exit_code not in IN_ORDER:
                    self._failures.labels(attempt.failure.code if attempt.failure else UNKNOWN).inc()
        if new.phase in ENDED and old.get("phase") != new.phase:
            self._jobs_finished.labels(new.phase).inc()

    def count_order(self, order: Order, is_accepted: bool) -> None:
        """Count an order that was sent to Ray or to a driver."""
        if not is_accepted:
            self._order_failures.labels(type(order).__name__).inc()
            return
        self._submissions.inc(isinstance(order, Submit))
        self._engine_restarts.inc(isinstance(order, RestartEngine))

    def _show_all(self) -> None:
        """Show every series before anything has happened, so that increases are counted from 0."""
        for error in ERRORS:
            self.reconcile_errors.labels(error)
        for order in ORDERS:
            self._order_failures.labels(order)
        for code in (*Exit, -1, None):
            self._driver_exits.labels(exit_name(code))
        self._failures.labels(UNKNOWN)
        for phase in ENDED:
            self._jobs_finished.labels(phase)


def exit_name(code: int | None) -> str:
    """Return the name of an exit code for a label: `OutOfMemory`, `Signal`, or `Unknown`."""
    if code is not None and code < 0:
        return "Signal"
    name = next((known.name for known in Exit if known == code), "UNKNOWN")
    return "".join(word.capitalize() for word in name.split("_"))


def _loop_lag(registry: CollectorRegistry) -> LoopLag:
    lag = LoopLag(time.monotonic)
    text = "Longest time in the last minute for which the event loop stood still"
    Gauge("rljob_operator_loop_lag_seconds", text, registry=registry).set_function(lambda: lag.worst_s)
    return lag


def _unreadable(registry: CollectorRegistry) -> Counter:
    text = "Objects of the API server that could not be read and were skipped"
    return Counter("rljob_operator_unreadable_objects", text, registry=registry)


def _of_reservations(registry: CollectorRegistry) -> tuple[Histogram, Counter]:
    text = "Duration of a pass over all jobs of the queue"
    passes = Histogram("rljob_operator_queue_pass_seconds", text, buckets=BUCKETS_S, registry=registry)
    text = "Jobs that were preempted for one of a higher priority"
    return passes, Counter("rljob_operator_preemptions", text, registry=registry)


class _Jobs(Collector):
    """The operator's jobs in the cache, counted, and each of them by namespace and name."""

    def __init__(self, cache: Cache, release: str) -> None:
        self._cache = cache
        self._release = release

    def collect(self) -> Iterable[Metric]:
        jobs = [job for job in self._cache.rows() if job.is_ours and job.release in (None, self._release)]
        counts = Counts(job.phase for job in jobs)
        by_phase = GaugeMetricFamily("rljob_operator_jobs", "Jobs by phase; New: not looked at yet", labels=["phase"])
        for phase in (NEW, *Phase):
            by_phase.add_metric([phase], counts[phase])
        yield by_phase
        for shown in OF_JOBS:
            yield shown.family(jobs)
        text = "Where the time of a job went, by part that its driver does not know"
        seconds = GaugeMetricFamily("rljob_operator_job_wall_seconds", text, labels=["namespace", "rljob", "part"])
        for job in jobs:
            for part, amount in job.seconds.items():
                seconds.add_metric([job.namespace, job.name, part], amount)
        yield seconds


@dataclass(frozen=True)
class Series:
    """A series of each job that has a value."""

    name: str
    text: str
    value: Callable[[JobRow], float | None]
    labels: Mapping[str, Callable[[JobRow], str]] = field(default_factory=dict)
    """besides those of every job"""

    def family(self, jobs: Iterable[JobRow]) -> GaugeMetricFamily:
        found = GaugeMetricFamily(self.name, self.text, labels=["namespace", "rljob", *self.labels])
        for job in jobs:
            value = self.value(job)
            if value is not None:
                found.add_metric([job.namespace, job.name, *(label(job) for label in self.labels.values())], value)
        return found


OF_JOBS = (
    Series(
        "rljob_operator_job_phase",
        "1 for the phase that a job is in",
        lambda job: 1.0,
        {"phase": lambda job: job.phase},
    ),
    Series("rljob_operator_job_gpus", "GPUs of a job with a cluster; on Cpu, processes", lambda job: job.gpus),
    Series(
        "rljob_operator_job_queued_timestamp_seconds", "Since when a job waits in the queue", lambda job: job.queued_at
    ),
    Series("rljob_operator_job_attempt", "Driver starts of a job so far", lambda job: job.attempt),
    Series(
        "rljob_operator_job_failure",
        "1 for the failure that ended the last attempt of a job that has failed or recovers",
        lambda job: 1.0 if job.failure is not None else None,
        {"code": lambda job: job.failure or UNKNOWN},
    ),
    Series(
        "rljob_operator_job_last_checkpoint_timestamp_seconds",
        "When the newest checkpoint of a job with a cluster was reported",
        lambda job: job.saved_at,
    ),
    Series(
        "rljob_operator_job_completion_timestamp_seconds",
        "When a job ended",
        lambda job: job.completed_at,
        {"phase": lambda job: job.phase},
    ),
)
