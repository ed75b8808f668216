"""Metrics for Prometheus, in a separate registry; the control server serves what `render` returns.

Counters start at 0 with each driver, and every series exists from the start: `rate` and `increase` expect both. A value
that was not measured yet is NaN: no alert compares it, and no plot shows it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rljob_api.control import RECOVERY, ROUTER, EngineState, Goodput
from rljob_api.sections import ONLY_REWARD
from rljob_trainer.metric_table import table
from rljob_trainer.metrics import StepMetrics
from rljob_trainer.reporting.goodput import REDONE
from rljob_trainer.reporting.gpu_families import GpuFamilies
from rljob_trainer.reporting.phases import OTHER, PHASES, Phases
from rljob_trainer.reporting.records import (
    CheckpointRecord,
    EngineRecord,
    EvaluationRecord,
    FindingRecord,
    PerplexityRecord,
    ReadyRecord,
    Record,
    RunRecord,
    StepRecord,
)
from rljob_trainer.reporting.volume import VolumeGauges
from rljob_trainer.reporting.watch import NAMES

CAUSES: Final = ("ProcessExited", "StartFailed", "PublishFailed", "Unresponsive")
"""why engines fail, see `engines.lifecycle`"""
CAUSES_OF_ROUTER: Final = ("ProcessExited", "Unresponsive")
"""why the router fails"""
MODES: Final = ("sampled", "greedy")
"""how responses are drawn in an evaluation"""
_NAN: Final = float("nan")
_STEP_BUCKETS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


class Metrics:
    """The metrics of one driver."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(
        self,
        phases: Phases,
        gpus: int,
        rewards: Sequence[str],
        evaluation_sets: Sequence[str],
        goodput: Callable[[], Goodput | None],
        directory: Path,
        kind: type[StepMetrics] = StepMetrics,
    ) -> None:
        """`gpus`: of the whole job; on Cpu, processes. `rewards`: names of the parts of the reward. `goodput`: of the
        whole run, at each scrape. `directory`: of the run. `kind`: the class whose table of metrics is exposed.
        """
        self._registry = registry = CollectorRegistry()
        registry.register(_CurrentPhase(phases))
        registry.register(_Goodput(goodput))
        ProcessCollector(registry=registry)
        Info("rljob_build", "Version of the trainer", registry=registry).info({"version": version("rljob")})
        self._run_info = Info("rljob_run", "Model and task of the run", registry=registry)
        self._run_info.info({"model": "", "task": ""})
        Gauge("rljob_gpus", "GPUs of the job; on Cpu, processes", registry=registry).set(gpus)
        self._step = Gauge("rljob_step", "Steps finished", registry=registry)
        self._steps_wanted = Gauge("rljob_steps_wanted", "Steps of the whole run", registry=registry)
        self._attempt = Gauge("rljob_attempt", "Driver starts so far", registry=registry)
        self._steps = Counter("rljob_steps", "Steps finished by this driver", registry=registry)
        self._step_time = _gauge("rljob_last_step_timestamp_seconds", "Time at which the last step finished", registry)
        self._step_seconds = Histogram(
            "rljob_step_seconds", "Wall-clock time of a step", registry=registry, buckets=_STEP_BUCKETS
        )
        self._phase_seconds = Counter("rljob_phase_seconds", "Wall-clock time by phase", ["phase"], registry=registry)
        self._lost_seconds = Gauge(
            "rljob_lost_seconds", "Work of earlier attempts that this driver repeats", registry=registry
        )
        self._token_rate = Gauge(
            "rljob_tokens_per_second", "Tokens per second of the phase (last step)", ["phase"], registry=registry
        )
        self._of_steps = _OfSteps(kind, registry)
        self._reward_parts = Gauge(
            "rljob_reward_part_mean",
            "Mean of each part of the reward over all samples, before its weight (last step)",
            ["part"],
            registry=registry,
        )
        for part in rewards:
            self._reward_parts.labels(part).set(_NAN)
        self._findings = Counter(
            "rljob_findings", "Findings of the anomaly monitor, counted when they begin", ["finding"], registry=registry
        )
        self._volume = VolumeGauges(directory, registry)
        self._uploaded = _gauge(
            "rljob_uploaded_checkpoint_step", "Step of the newest checkpoint in spec.checkpoint.remote", registry
        )
        self._upload_fails = _gauge(
            "rljob_checkpoint_upload_failing",
            "1 while checkpoints do not reach spec.checkpoint.remote, else 0",
            registry,
        )
        self._gpus = GpuFamilies()
        registry.register(self._gpus)
        self._evaluations = _Evaluations(evaluation_sets, registry)
        self._engines = Gauge("rljob_engines", "Engines by state", ["state"], registry=registry)
        self._restarts = Counter(
            "rljob_engine_restarts", "Engines that returned after a failure", ["cause"], registry=registry
        )
        self._failures = Counter("rljob_engine_failures", "Engines that failed", ["cause"], registry=registry)
        self._router_restarts = Counter(
            "rljob_router_restarts", "Routers that returned after a failure", ["cause"], registry=registry
        )
        self._failed_engines: dict[tuple[str, int], bool] = {}
        """(engine, generation) that failed -> whether its successor serves"""
        self._checkpoint_step = Gauge("rljob_checkpoint_step", "Step of the last checkpoint", registry=registry)
        self._checkpoint_time = _gauge(
            "rljob_last_checkpoint_timestamp_seconds", "Time at which the last checkpoint was written", registry
        )
        self._show_all()

    def render(self) -> tuple[str, bytes]:
        """Return the content type and the text of all metrics. May be called from any thread."""
        return self.content_type, generate_latest(self._registry)

    def uploaded(self, step: int | None, is_failing: bool) -> None:
        """Show the step of the newest checkpoint in the store, None if there is none, and whether uploads fail."""
        self._uploaded.set(_NAN if step is None else step)
        self._upload_fails.set(is_failing)

    def engines(self, engines_by_state: Mapping[str, int]) -> None:
        """Set how many engines are in each state; 0 for a state that is missing."""
        for state in EngineState:
            self._engines.labels(state).set(engines_by_state.get(state, 0))

    def record(self, record: Record) -> None:
        self._volume.record(record)
        match record:
            case RunRecord():
                self._run(record)
            case ReadyRecord():
                self._add_phases(record.phase_seconds)
            case StepRecord():
                self._finished(record)
            case EvaluationRecord():
                self._evaluated(record)
            case PerplexityRecord():
                self._evaluations.perplexity.set(record.perplexity)
            case EngineRecord():
                self._failed(record)
            case FindingRecord():
                self._findings.labels(record.name).inc()
            case CheckpointRecord():
                self._checkpoint_step.set(record.step)
                self._checkpoint_time.set(record.time)

    def close(self) -> None:
        """Do nothing: metrics end with the process."""

    def _show_all(self) -> None:
        """Create every series at the start."""
        self.engines({})
        for name in NAMES:
            self._findings.labels(name)
        for cause in CAUSES:
            self._failures.labels(cause)
            self._restarts.labels(cause)
        for cause in CAUSES_OF_ROUTER:
            self._router_restarts.labels(cause)
        for phase in (*PHASES, OTHER):
            self._phase_seconds.labels(phase)
        for phase in ("rollout", "train"):
            self._token_rate.labels(phase).set(_NAN)

    def _run(self, record: RunRecord) -> None:
        self._run_info.info({"model": record.model, "task": record.task})
        self._lost_seconds.set(record.lost_seconds)
        self._step.set(record.step)
        self._steps_wanted.set(record.steps)
        self._attempt.set(record.attempt)
        self._add_phases(record.phase_seconds)

    def _finished(self, record: StepRecord) -> None:
        self._step.set(record.step)
        self._steps.inc()
        self._step_time.set(record.time)
        self._step_seconds.observe(record.seconds)
        self._of_steps.add(record)
        self._gpus.show(record.gpus)
        for part, mean in (record.reward_parts or {ONLY_REWARD: _number(record.reward_mean)}).items():
            self._reward_parts.labels(part).set(mean)
        self._add_phases(record.phase_seconds)
        self._token_rate.labels("rollout").set(_number(record.rollout_tokens_per_second))
        self._token_rate.labels("train").set(_number(record.train_tokens_per_second))

    def _evaluated(self, record: EvaluationRecord) -> None:
        self._evaluations.add(record)
        self._of_steps.counters["reward_failures"].inc(record.reward_failures)

    def _failed(self, record: EngineRecord) -> None:
        """Count each failure once and each return once; records of one failure repeat."""
        failure = (record.engine, record.generation)
        if record.engine == ROUTER:
            self._router_restarts.labels(record.cause).inc(record.return_seconds is not None)
            return
        if failure not in self._failed_engines:
            self._failures.labels(record.cause).inc()
        if record.return_seconds is not None and not self._failed_engines.get(failure, False):
            self._restarts.labels(record.cause).inc()
        self._failed_engines[failure] = record.return_seconds is not None

    def _add_phases(self, phase_seconds: Mapping[str, float]) -> None:
        for phase, seconds in phase_seconds.items():
            self._phase_seconds.labels(phase).inc(seconds)


class _OfSteps:
    """The gauges and counters of a table of metrics."""

    def __init__(self, kind: type[StepMetrics], registry: CollectorRegistry) -> None:
        lines = table(kind)
        self.gauges = {
            name: _gauge(line.gauge, f"{line.text} (last step)", registry, line.initial)
            for name, line in lines.items()
            if line.gauge
        }
        self.counters = {
            name: Counter(line.counter, line.text, registry=registry) for name, line in lines.items() if line.counter
        }

    def add(self, step: StepMetrics) -> None:
        for name, gauge in self.gauges.items():
            gauge.set(_number(getattr(step, name)))
        for name, counter in self.counters.items():
            counter.inc(getattr(step, name))


class _Evaluations:
    """The gauges of the newest evaluation."""

    def __init__(self, sets: Sequence[str], registry: CollectorRegistry) -> None:
        self._accuracy = Gauge("rljob_heldout_accuracy", "Accuracy on held-out questions", ["mode"], registry=registry)
        self._set_accuracy = Gauge(
            "rljob_evaluation_set_accuracy",
            "Accuracy on each set of data.evaluationSets",
            ["set", "mode"],
            registry=registry,
        )
        for mode in MODES:
            self._accuracy.labels(mode).set(_NAN)
        for name, mode in product(sets, MODES):
            self._set_accuracy.labels(name, mode).set(_NAN)
        self.perplexity = _gauge(
            "rljob_heldout_perplexity", "Perplexity of the data's responses to held-out questions, with sft", registry
        )

    def add(self, record: EvaluationRecord) -> None:
        self._accuracy.labels("sampled").set(_number(record.sampled))
        self._accuracy.labels("greedy").set(_number(record.greedy))
        for name, accuracy in record.sets.items():
            self._set_accuracy.labels(name, "sampled").set(_number(accuracy.sampled))
            self._set_accuracy.labels(name, "greedy").set(_number(accuracy.greedy))


class _Goodput(Collector):
    """Where the wall clock of the whole run went, up to the newest step."""

    def __init__(self, read: Callable[[], Goodput | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        goodput = self._read()
        seconds = GaugeMetricFamily(
            "rljob_wall_seconds",
            "Wall-clock time of the run since its first start, by part: phases, redone steps, recovery",
            labels=["part"],
        )
        for part in (*PHASES, OTHER, REDONE, RECOVERY):
            seconds.add_metric([part], goodput.seconds.get(part, 0.0) if goodput else 0.0)
        yield seconds
        yield GaugeMetricFamily(
            "rljob_effective_time_ratio",
            "Share of the wall-clock time of the run in steps that count (ETTR)",
            value=goodput.effective_share if goodput else _NAN,
        )
        yield GaugeMetricFamily(
            "rljob_lost_gpu_seconds",
            "GPU-seconds of the run in no step that counts",
            value=goodput.lost_gpu_seconds if goodput else 0.0,
        )


class _CurrentPhase(Collector):
    """The driver's phase at the time of the scrape, and for how long."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rljob_current_phase_seconds", "Time since the driver entered its current phase", labels=["phase"]
        )
        family.add_metric([self._phases.current.name], self._phases.seconds_in_current())
        yield family


def _gauge(name: str, text: str, registry: CollectorRegistry, initial: float = _NAN) -> Gauge:
    """Return a gauge with the value it has before the first measurement."""
    gauge = Gauge(name, text, registry=registry)
    gauge.set(initial)
    return gauge


def _number(value: float | None) -> float:
    """Return the value, or NaN for a missing one."""
    return _NAN if value is None else value
