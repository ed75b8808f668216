"""The operator's own metrics, in the Prometheus format. Those of a training run come from its driver."""

from collections import Counter as Counts
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_operator.cache import Cache
from rljob_operator.pulse import Pulse
from rljob_operator.workqueue import WorkQueue

BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Metrics:
    """All series, in a registry of their own."""

    def __init__(self, cache: Cache, queue: WorkQueue, pulse: Pulse) -> None:
        self._registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "rljob_operator_reconcile_seconds", "Duration of a reconcile", buckets=BUCKETS_S, registry=self._registry
        )
        self.reconcile_errors = Counter(
            "rljob_operator_reconcile_errors", "Reconciles that failed, by error", ["error"], registry=self._registry
        )
        self.submissions = Counter(
            "rljob_operator_driver_submissions", "Drivers that were submitted to Ray", registry=self._registry
        )
        self.engine_restarts = Counter(
            "rljob_operator_engine_restarts", "Restarts of engines that were ordered", registry=self._registry
        )
        self.is_leader = Gauge("rljob_operator_is_leader", "1 while this replica acts", registry=self._registry)
        depth = Gauge("rljob_operator_queue_depth", "Jobs that wait to be looked at", registry=self._registry)
        depth.set_function(lambda: len(queue))
        silence = Gauge(
            "rljob_operator_watch_silence_seconds",
            "How long the oldest expected watch event is missing",
            registry=self._registry,
        )
        silence.set_function(lambda: pulse.silent_s)
        self._registry.register(_Phases(cache))

    def text(self) -> bytes:
        """Return all series as Prometheus reads them."""
        return generate_latest(self._registry)


class _Phases(Collector):
    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("rljob_operator_jobs", "Jobs, by phase", labels=["phase"])
        jobs = (self._cache.job(key) for key in self._cache.jobs())
        phases = Counts(job.get("status", {}).get("phase", "New") for job in jobs if job is not None)
        for phase, count in phases.items():
            family.add_metric([phase], count)
        yield family
