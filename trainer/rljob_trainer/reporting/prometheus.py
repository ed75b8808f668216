"""Metrics for Prometheus, in a registry of their own; the control server serves what `render` returns.

Counters begin at 0 with each driver: `rate` and `increase` expect that, and for them every series is there from the
start. What has not been measured yet is NaN: no alert compares it, and no plot shows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rljob_api.control import EngineState
from rljob_api.sections import ONLY_REWARD
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
from rljob_trainer.reporting.watch import NAMES

_STEP_GAUGES: Final = {
    "reward_mean": ("rljob_reward_mean", "Mean reward of the last step's samples"),
    "groups_without_signal": (
        "rljob_groups_without_signal_ratio",
        "Share of the last step's groups whose samples all got the same reward",
    ),
    "groups_dropped": ("rljob_groups_dropped", "Groups of the last step that were made and not trained on"),
    "response_length": ("rljob_response_length_tokens", "Mean response of the last step"),
    "truncated": ("rljob_truncated_ratio", "Share of the last step's responses that reached the token limit"),
    "repeated": ("rljob_repeated_ratio", "Share of 4-grams that came before in their response, in the last step"),
    "staleness": ("rljob_staleness_steps", "Mean age of the weights that made the last step's response tokens"),
    "max_staleness": ("rljob_staleness_max_steps", "Age of the oldest weights that made a token of the last step"),
    "data_wait": ("rljob_data_wait_ratio", "Share of the last step for which the learner waited for samples"),
    "reward_std": ("rljob_reward_std", "Standard deviation of the rewards of the last step's samples"),
    "loss": ("rljob_loss", "Loss of the last step"),
    "grad_norm": ("rljob_grad_norm", "Gradient norm of the last step before clipping"),
    "learning_rate": ("rljob_learning_rate", "Learning rate of the last step"),
    "entropy": ("rljob_entropy_nats", "Mean entropy of the last step's response tokens"),
    "kl": ("rljob_kl_nats", "Mean KL estimate of the last step against the reference model, or the teacher"),
    "perplexity": (
        "rljob_perplexity",
        "Perplexity of the last step's response tokens by the learner, before the update",
    ),
    "clip_fraction": ("rljob_clip_ratio", "Share of the last step's response tokens whose ratio was clipped"),
    "logprob_mismatch": (
        "rljob_logprob_mismatch_nats",
        "Mean absolute difference between the engines' and the learner's log-probabilities",
    ),
    "importance_weight": (
        "rljob_importance_weight",
        "Mean importance weight between engines and learner of the last step's response tokens",
    ),
    "importance_cut": (
        "rljob_importance_cut_ratio",
        "Share of the last step's response tokens whose importance weight was truncated or masked",
    ),
    "value_loss": ("rljob_value_loss", "Loss of the critic of the last step"),
    "value_clip_fraction": (
        "rljob_value_clip_ratio",
        "Share of the last step's response tokens whose value loss was bounded",
    ),
    "explained_variance": (
        "rljob_explained_variance",
        "How much of the returns' variance the critic expected, in the last step; below 0: less than a constant would",
    ),
    "critic_grad_norm": ("rljob_critic_grad_norm", "Gradient norm of the critic of the last step before clipping"),
}
"""attribute of StepRecord -> (metric, help)"""

CAUSES: Final = ("ProcessExited", "StartFailed", "PublishFailed", "Unresponsive")
"""why engines fail, in the words of `engines.lifecycle`"""
MODES: Final = ("sampled", "greedy")
"""how responses to questions that are measured on are drawn"""
_NAN: Final = float("nan")
_STEP_BUCKETS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


class Metrics:
    """The numbers of one driver."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self, phases: Phases, gpus: int, rewards: Sequence[str], evaluation_sets: Sequence[str]) -> None:
        """`gpus`: what the job takes in all; on Cpu, processes. `rewards`: names of the parts of the reward."""
        self._registry = registry = CollectorRegistry()
        registry.register(_CurrentPhase(phases))
        ProcessCollector(registry=registry)
        Info("rljob_build", "Version of the trainer", registry=registry).info({"version": version("rljob")})
        self._run_info = Info("rljob_run", "What is trained, and on what", registry=registry)
        self._run_info.info({"model": "", "task": ""})
        Gauge("rljob_gpus", "GPUs that the job holds; on Cpu, processes", registry=registry).set(gpus)
        self._step = Gauge("rljob_step", "Steps finished", registry=registry)
        self._steps_wanted = Gauge("rljob_steps_wanted", "Steps of the whole run", registry=registry)
        self._attempt = Gauge("rljob_attempt", "Driver starts so far", registry=registry)
        self._steps = Counter("rljob_steps", "Steps finished by this driver", registry=registry)
        self._step_time = _unknown("rljob_last_step_timestamp_seconds", "When the last step finished", registry)
        self._step_seconds = Histogram(
            "rljob_step_seconds", "Wall-clock time of a step", registry=registry, buckets=_STEP_BUCKETS
        )
        self._phase_seconds = Counter("rljob_phase_seconds", "Wall-clock time by phase", ["phase"], registry=registry)
        self._lost_seconds = Gauge(
            "rljob_lost_seconds", "Work of earlier attempts that this driver does again", registry=registry
        )
        self._tokens = {
            "rollout": Counter("rljob_rollout_tokens", "Response tokens made by the engines", registry=registry),
            "train": Counter("rljob_train_tokens", "Tokens trained on", registry=registry),
        }
        self._token_rate = Gauge(
            "rljob_tokens_per_second", "Tokens per second of the last step's phase", ["phase"], registry=registry
        )
        self._step_gauges = {
            attribute: _unknown(name, text, registry) for attribute, (name, text) in _STEP_GAUGES.items()
        }
        self._reward_parts = Gauge(
            "rljob_reward_part_mean",
            "Mean of each part of the reward over the last step's samples, before its weight",
            ["part"],
            registry=registry,
        )
        for part in rewards:
            self._reward_parts.labels(part).set(_NAN)
        self._reward_failures = Counter(
            "rljob_reward_failures", "Judgements that failed and got reward.failureScore", registry=registry
        )
        self._skipped = Counter(
            "rljob_skipped_steps", "Optimizer steps skipped for a gradient that was not finite", registry=registry
        )
        self._findings = Counter(
            "rljob_findings", "Times that something began to hold which is watched for", ["finding"], registry=registry
        )
        self._version = Gauge("rljob_weight_version", "Version of the published weights", registry=registry)
        self._accuracy = Gauge("rljob_heldout_accuracy", "Accuracy on held-out questions", ["mode"], registry=registry)
        self._set_accuracy = Gauge(
            "rljob_evaluation_set_accuracy",
            "Accuracy on each of data.evaluationSets",
            ["set", "mode"],
            registry=registry,
        )
        for name, mode in product(evaluation_sets, MODES):
            self._set_accuracy.labels(name, mode).set(_NAN)
        self._heldout_perplexity = _unknown(
            "rljob_heldout_perplexity",
            "Perplexity of the data's own responses to held-out questions, with sft",
            registry,
        )
        self._engines = Gauge("rljob_engines", "Engines by state", ["state"], registry=registry)
        self._restarts = Counter(
            "rljob_engine_restarts", "Engines that came back after a failure", ["cause"], registry=registry
        )
        self._failures = Counter("rljob_engine_failures", "Engines that failed", ["cause"], registry=registry)
        self._failed_engines: dict[tuple[str, int], bool] = {}
        """(engine, generation) that failed -> whether it has a successor that serves"""
        self._checkpoint_step = Gauge("rljob_checkpoint_step", "Step of the last checkpoint", registry=registry)
        self._checkpoint_time = _unknown(
            "rljob_last_checkpoint_timestamp_seconds", "When the last checkpoint was written", registry
        )
        self._show_all()

    def render(self) -> tuple[str, bytes]:
        """Return the content type and the text of all metrics. May be called from any thread."""
        return self.content_type, generate_latest(self._registry)

    def engines(self, engines_by_state: Mapping[str, int]) -> None:
        """Set how many engines are in each state; a state that is not named has none."""
        for state in EngineState:
            self._engines.labels(state).set(engines_by_state.get(state, 0))

    def record(self, record: Record) -> None:
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
                self._heldout_perplexity.set(record.perplexity)
            case EngineRecord():
                self._failed(record)
            case FindingRecord():
                self._findings.labels(record.name).inc()
            case CheckpointRecord():
                self._checkpoint_step.set(record.step)
                self._checkpoint_time.set(record.time)

    def close(self) -> None:
        """Nothing to leave behind: metrics end with the process."""

    def _show_all(self) -> None:
        """Show every series before anything has happened."""
        self.engines({})
        for name in NAMES:
            self._findings.labels(name)
        for cause in CAUSES:
            self._failures.labels(cause)
            self._restarts.labels(cause)
        for phase in (*PHASES, OTHER):
            self._phase_seconds.labels(phase)
        for phase in self._tokens:
            self._token_rate.labels(phase).set(_NAN)
        for mode in MODES:
            self._accuracy.labels(mode).set(_NAN)

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
        self._skipped.inc(record.skipped)
        self._reward_failures.inc(record.reward_failures)
        for part, mean in (record.reward_parts or {ONLY_REWARD: _number(record.reward_mean)}).items():
            self._reward_parts.labels(part).set(mean)
        self._version.set(record.version)
        self._add_phases(record.phase_seconds)
        self._tokens["rollout"].inc(record.rollout_tokens)
        self._tokens["train"].inc(record.train_tokens)
        self._token_rate.labels("rollout").set(_number(record.rollout_tokens_per_second))
        self._token_rate.labels("train").set(_number(record.train_tokens_per_second))
        for attribute, gauge in self._step_gauges.items():
            gauge.set(_number(getattr(record, attribute)))

    def _evaluated(self, record: EvaluationRecord) -> None:
        self._accuracy.labels("sampled").set(_number(record.sampled))
        self._accuracy.labels("greedy").set(_number(record.greedy))
        for name, accuracy in record.sets.items():
            self._set_accuracy.labels(name, "sampled").set(_number(accuracy.sampled))
            self._set_accuracy.labels(name, "greedy").set(_number(accuracy.greedy))
        self._reward_failures.inc(record.reward_failures)

    def _failed(self, record: EngineRecord) -> None:
        """Count a failure once and a return once, however often they are told of."""
        failure = (record.engine, record.generation)
        if failure not in self._failed_engines:
            self._failures.labels(record.cause).inc()
        if record.return_seconds is not None and not self._failed_engines.get(failure, False):
            self._restarts.labels(record.cause).inc()
        self._failed_engines[failure] = record.return_seconds is not None

    def _add_phases(self, phase_seconds: Mapping[str, float]) -> None:
        for phase, seconds in phase_seconds.items():
            self._phase_seconds.labels(phase).inc(seconds)


class _CurrentPhase(Collector):
    """What the driver is doing at the moment of the scrape, and for how long."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rljob_current_phase_seconds", "Time in the phase that the driver is in", labels=["phase"]
        )
        family.add_metric([self._phases.current.name], self._phases.seconds_in_current())
        yield family


def _unknown(name: str, text: str, registry: CollectorRegistry) -> Gauge:
    """Return a gauge that has not been measured yet."""
    gauge = Gauge(name, text, registry=registry)
    gauge.set(_NAN)
    return gauge


def _number(value: float | None) -> float:
    """Return what stands for a missing value in Prometheus."""
    return _NAN if value is None else value
