"""Watches a run for slow failures of training. It reports them by name, with their numbers, and changes nothing.

Each detector is a function of the past of the run and returns what it finds now. A finding is reported when it begins,
and again only after it had ended, clearly within its limit (`watch_limits.py`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median

from rljob_api.control import Finding
from rljob_api.sections import Spec, Watch
from rljob_trainer.reporting.gpu_findings import throttled
from rljob_trainer.reporting.past import Mean, Past, Windows
from rljob_trainer.reporting.records import StepRecord
from rljob_trainer.reporting.watch_limits import Bounds, bounds, eased, eased_bounds

Steps = Sequence[StepRecord]
NAMES = (
    "RewardCollapse",
    "EntropyCollapse",
    "GradientSpike",
    "LossDiverging",
    "NonFinite",
    "Truncation",
    "Repetition",
    "NoSignal",
    "EngineImbalance",
    "ExpertCollapse",
    "GpuThrottled",
    "Mismatch",
    "Staleness",
    "DataWait",
)
"""of all findings"""
AT_ONCE = frozenset({"GradientSpike", "NonFinite"})
"""findings of the weights that begin in a single step"""
GRADUAL = frozenset({"RewardCollapse", "EntropyCollapse", "LossDiverging", "ExpertCollapse"})
"""those that begin somewhere in the window"""
FEWEST_SAMPLES = 50
"""mean of an engine in the window; with fewer, chance alone makes engines unequal"""


@dataclass(frozen=True)
class WatchState:
    """What a monitor knows, but for the last steps."""

    window: int
    skipped: int
    windows: dict[str, Windows]
    standing: dict[str, Finding]
    saved: list[int]


@dataclass
class AnomalyMonitor:
    """Runs the detectors after each step and remembers their findings."""

    limits: Watch
    bounds: Bounds
    keep: int = 2
    """checkpoints that are not deleted yet"""
    _past: Past = field(init=False)
    _standing: dict[str, Finding] = field(default_factory=dict)
    _lasting: list[Finding] = field(default_factory=list)
    _saved: list[int] = field(default_factory=list)
    """steps of the checkpoints"""

    def __post_init__(self) -> None:
        self._past = Past(self.limits.window)

    def after(self, step: StepRecord) -> tuple[Finding, ...]:
        """Return the findings that begin with this step."""
        self._past.add(step)
        found = held(self._standing, self._past, self.limits, self.bounds)
        found = tuple(with_checkpoint(finding, step.step, self._saved, self.limits.window) for finding in found)
        new = tuple(finding for finding in found if finding.name not in self._standing)
        # With the first numbers: those of later steps would be a change at every step.
        self._standing = {finding.name: self._standing.get(finding.name, finding) for finding in found}
        return new

    @property
    def state(self) -> WatchState:
        """What it knows, to be restored."""
        past = self._past
        return WatchState(past.window, past.skipped, past.windows, self._standing, self._saved)

    def restore(self, state: WatchState, recent: Sequence[StepRecord]) -> None:
        """Know what another monitor knew, which had the same window; `recent`: the last steps."""
        last = [*recent][-state.window - 1 :]
        self._past = Past(state.window, state.skipped, state.windows, last)
        self._standing, self._saved = state.standing, state.saved

    def note(self, finding: Finding) -> None:
        """Note a finding that does not end while this driver runs: a GPU with an error."""
        self._lasting.append(finding)

    def saved(self, step: int) -> None:
        """Note a checkpoint: a finding names the last one that it has not harmed."""
        self._saved = [*self._saved, step][-self.keep :]

    @property
    def standing(self) -> tuple[Finding, ...]:
        """Current findings, each with the numbers from when it began."""
        return (*self._lasting, *self._standing.values())


def anomaly_monitor(spec: Spec) -> AnomalyMonitor:
    """Return the monitor with the limits of a manifest."""
    return AnomalyMonitor(spec.watch, bounds(spec), spec.checkpoint.keep)


def held(standing: Collection[str], past: Past, limits: Watch, bounds: Bounds) -> tuple[Finding, ...]:
    """Return the findings that begin beyond their limits after these steps, or that stand and are not clearly over."""
    begun = findings(past, limits, bounds)
    names = {finding.name for finding in begun}
    still = findings(past, eased(limits), eased_bounds(bounds)) if standing else ()
    return (*begun, *(each for each in still if each.name in standing and each.name not in names))


def findings(past: Past, limits: Watch, bounds: Bounds) -> tuple[Finding, ...]:
    """Return all findings after these steps."""
    found = [
        *(detector(past, limits) for detector in OF_THE_WHOLE_RUN),
        *(detector(past.recent, limits) for detector in DETECTORS),
        *(detector(past.recent, limits, bounds) for detector in BOUNDED),
    ]
    return tuple(sorted((each for each in found if each), key=lambda each: NAMES.index(each.name)))


def with_checkpoint(finding: Finding, step: int, saved: Sequence[int], window: int) -> Finding:
    """Return a finding that is about the weights with the last checkpoint from before it, if one is left."""
    if finding.name not in AT_ONCE | GRADUAL:
        return finding
    healthy = step - (1 if finding.name in AT_ONCE else window)
    before = max((each for each in saved if each <= healthy), default=None)
    known = (
        f"The last checkpoint from before is of step {before}: to resume from it, set checkpoint.resumeStep to"
        f" {before}."
        if before
        else "No checkpoint from before is left; checkpoint.keep and checkpoint.interval decide that."
    )
    return finding.model_copy(update={"advice": f"{finding.advice} {known}"})


def reward_collapse(past: Past, limits: Watch) -> Finding | None:
    """The mean reward fell far below its best."""
    if (known := past.windows["reward"].past) is None:
        return None
    now, _, _, best = known
    if best.value - now.value <= limits.reward_drop * abs(best.value):
        return None
    return Finding(
        name="RewardCollapse",
        evidence=f"mean reward of {span(now, limits)} is {now.value:.3g}, of {span(best, limits)} it was"
        f" {best.value:.3g};"
        f" watch.rewardDrop {limits.reward_drop:g}",
        advice="Compare samples of both steps. Resume from a checkpoint before the fall, with a lower learning rate or"
        " a KL penalty (algorithm.kl).",
    )


def entropy_collapse(past: Past, limits: Watch) -> Finding | None:
    """The policy no longer explores."""
    if (known := past.windows["entropy"].past) is None:
        return None
    now, before, _, _ = known
    if now.value >= limits.entropy_share * before.value:
        return None
    return Finding(
        name="EntropyCollapse",
        evidence=f"mean entropy of {span(now, limits)} is {now.value:.3g} nats, of the first {limits.window} steps it"
        f" was {before.value:.3g}; watch.entropyShare {limits.entropy_share:g}",
        advice="Samples of a group become alike and give no signal. Raise algorithm.clipHigh or"
        " algorithm.entropyCoefficient, or lower the learning rate.",
    )


def gradient_spike(steps: Steps, limits: Watch) -> Finding | None:
    """One gradient is far larger than the ones before it."""
    *before, last = steps
    norms = [step.grad_norm for step in before[-limits.window :] if step.grad_norm]
    if last.grad_norm is None or len(norms) < limits.window:
        return None
    usual = median(norms)
    if last.grad_norm <= limits.gradient_spike * usual:
        return None
    return Finding(
        name="GradientSpike",
        evidence=f"gradient norm of step {last.step} is {last.grad_norm:.3g}, the median of the {limits.window} steps"
        f" before is {usual:.3g}; watch.gradientSpike {limits.gradient_spike:g}",
        advice="Check the step's samples (debug.dumpRollouts keeps them) for very long or garbled ones, and for data"
        " with a chat template already applied. training.optimizer.clipGrad limited the step.",
    )


def loss_diverging(past: Past, limits: Watch) -> Finding | None:
    """The loss moved far away from where it was."""
    if (known := past.windows["loss"].past) is None:
        return None
    now, _, least, _ = known
    if now.value - least.value <= limits.loss_rise:
        return None
    return Finding(
        name="LossDiverging",
        evidence=f"mean |loss| of {span(now, limits)} is {now.value:.3g}, of {span(least, limits)} it was"
        f" {least.value:.3g};"
        f" watch.lossRise {limits.loss_rise:g}",
        advice="Lower the learning rate, or lengthen the warm-up. Check the data of these steps.",
    )


def non_finite(past: Past, limits: Watch) -> Finding | None:
    """Optimizer steps were skipped. By default one is enough, so this does not wait for a full window."""
    recent = past.recent[-limits.window :]
    faulty = [step for step in recent if step.skipped]
    if sum(step.skipped for step in faulty) <= limits.non_finite:
        return None
    return Finding(
        name="NonFinite",
        evidence=f"optimizer steps of steps {recent[0].step} to {recent[-1].step} that were skipped because a gradient"
        f" was not finite: {sum(step.skipped for step in faulty)}, the first in step {faulty[0].step}, the last in step"
        f" {faulty[-1].step}; {past.skipped} in the whole run; watch.nonFinite"
        f" {limits.non_finite}",
        advice="Check the step's samples (debug.dumpRollouts keeps them), and loss and gradient norm before it. Lower"
        " the learning rate or lengthen the warm-up. Above training.optimizer.maxSkippedSteps the run fails.",
    )


def truncation(steps: Steps, limits: Watch) -> Finding | None:
    """Responses do not end."""
    return above(
        steps,
        limits,
        "Truncation",
        lambda step: step.truncated,
        limits.truncated,
        "share of truncated responses",
        "watch.truncated",
        "Responses are cut off before their answer. Raise sampling.maxNewTokens, or check the stop tokens (`rljob plan`"
        " lists them).",
    )


def repetition(steps: Steps, limits: Watch) -> Finding | None:
    """Responses repeat themselves."""
    return above(
        steps,
        limits,
        "Repetition",
        lambda step: step.repeated,
        limits.repeated,
        "share of 4-grams that came before in the same response",
        "watch.repeated",
        "The reward favours length, or the weights are damaged. Check samples, RewardCollapse and Mismatch.",
    )


def no_signal(steps: Steps, limits: Watch) -> Finding | None:
    """Almost no group has samples with different rewards."""
    return above(
        steps,
        limits,
        "NoSignal",
        lambda step: step.groups_without_signal,
        limits.no_signal,
        "share of groups whose samples all got the same reward",
        "watch.noSignal",
        "Questions are too easy or too hard, or the reward gives all samples one score. Use other questions or more"
        " samplesPerPrompt.",
    )


def engine_imbalance(steps: Steps, limits: Watch) -> Finding | None:
    """The router gives one engine much more work than the others, and the rollout waits for it.

    Only engines that served during the whole window count: one that was started anew has had less.
    """
    recent = steps[-limits.window :]
    if len(recent) < limits.window:
        return None
    whole = set.intersection(*(set(step.engine_samples) for step in recent))
    totals = Counter({engine: sum(step.engine_samples[engine] for step in recent) for engine in sorted(whole)})
    if len(totals) < 2:
        return None
    usual, (busiest, most) = fmean(totals.values()), totals.most_common(1)[0]
    if usual < FEWEST_SAMPLES or most <= limits.engine_imbalance * usual:
        return None
    idlest, least = totals.most_common()[-1]
    return Finding(
        name="EngineImbalance",
        evidence=f"of {span(recent[-1], limits)}, {busiest} made {most} samples and {idlest} {least}; the mean of"
        f" {len(totals)} engines is {usual:.4g}; watch.engineImbalance {limits.engine_imbalance:g}",
        advice="A step waits for the busiest engine. Use another rollout.routerPolicy, or more and smaller engines; if"
        " one engine is slow, look at its node and its log.",
    )


def expert_collapse(past: Past, limits: Watch) -> Finding | None:
    """The routers send ever more tokens to the same experts."""
    known, entropies = past.windows["expert_load"].past, past.windows["router_entropy"].past
    if known is None or entropies is None:
        return None
    now, before, _, _ = known
    if now.value <= limits.expert_load * before.value:
        return None
    return Finding(
        name="ExpertCollapse",
        evidence="load of the busiest expert (1: all experts of its layer get equally many tokens) of"
        f" {span(now, limits)} is {now.value:.3g}, of the first {limits.window} steps it was {before.value:.3g}; the"
        f" routers' entropy is {entropies[0].value:.3g} nats and was {entropies[1].value:.3g};"
        f" watch.expertLoad {limits.expert_load:g}",
        advice="Few experts do the work, and the ranks that hold the others wait. Set training.experts.balanceLoss, for"
        " example to 0.001, or biasUpdateRate if the routers have a bias, or lower the learning rate.",
    )


def disagreement(steps: Steps, limits: Watch, bounds: Bounds) -> Finding | None:
    """Engines and learner compute different probabilities."""
    return above(
        steps,
        limits,
        "Mismatch",
        lambda step: step.logprob_mismatch,
        bounds.mismatch,
        "mean |engine - learner| of log-probabilities [nats]",
        "watch.mismatch",
        "The learner trains on samples of another policy. Compare with the first step; a replay (debug.replay) shows"
        " whether the engines are the cause. In a model with experts both may choose others for some tokens:"
        " training.experts.replay Rollout takes the engines' choice.",
    )


def staleness(steps: Steps, limits: Watch, bounds: Bounds) -> Finding | None:
    """Samples are older than allowed, or than the limit of the watch."""
    last = steps[-1]
    if last.max_staleness is not None and last.max_staleness > bounds.oldest:
        return Finding(
            name="Staleness",
            evidence=f"the oldest token of step {last.step} was made by weights that are {last.max_staleness} steps"
            f" old; rollout.async.maxStaleness {bounds.oldest:g}",
            advice="Samples of that age should have been dropped, so this is a bug: please report it. Keep the rollouts"
            " (debug.dumpRollouts), whose `version` and `carried` name the weights of each token.",
        )
    return above(
        steps,
        limits,
        "Staleness",
        lambda step: step.staleness,
        inf if limits.staleness is None else limits.staleness,
        "mean age of the weights that made the response tokens [steps]",
        "watch.staleness",
        "The learner is slower than the engines. Lower rollout.async.maxStaleness or give the learner more GPUs;"
        " algorithm.importanceSampling corrects for the difference.",
    )


def data_wait(steps: Steps, limits: Watch, bounds: Bounds) -> Finding | None:
    """The learner is idle because it waits for samples."""
    recent = steps[-limits.window :]
    last = mean(recent, limits.window, lambda step: step.data_wait)
    if last is None or last.value <= bounds.data_wait:
        return None
    waited = fmean(step.data_wait_seconds for step in recent)
    trained = fmean(step.phase_seconds.get("train", 0.0) for step in recent)
    return Finding(
        name="DataWait",
        evidence=f"share of {span(last, limits)} for which the learner waited for samples is {last.value:.3g}:"
        f" {waited:.3g} s of a step, in which it trained for {trained:.3g} s; watch.dataWait {bounds.data_wait:g}",
        advice="Engines are slower than the learner. Use more rollout.engines, move GPUs from the learner to engines,"
        " or sample shorter or fewer responses. If they share GPUs, use rollout.async; if single responses are long,"
        " rollout.async.partial.",
    )


OF_THE_WHOLE_RUN: tuple[Callable[[Past, Watch], Finding | None], ...] = (
    reward_collapse,
    entropy_collapse,
    loss_diverging,
    non_finite,
    expert_collapse,
)
DETECTORS: tuple[Callable[[Steps, Watch], Finding | None], ...] = (
    gradient_spike,
    truncation,
    repetition,
    no_signal,
    engine_imbalance,
)
"""of the last steps: a window, and one more"""
BOUNDED: tuple[Callable[[Steps, Watch, Bounds], Finding | None], ...] = (
    throttled,
    disagreement,
    staleness,
    data_wait,
)


def above(
    steps: Steps,
    limits: Watch,
    name: str,
    value: Callable[[StepRecord], float | None],
    limit: float,
    what: str,
    field_name: str,
    advice: str,
) -> Finding | None:
    """Return a finding if the mean over the last window is above its limit."""
    now = mean(steps[-limits.window :], limits.window, value)
    if now is None or now.value <= limit:
        return None
    return Finding(
        name=name, evidence=f"{what} of {span(now, limits)} is {now.value:.3g}; {field_name} {limit:g}", advice=advice
    )


def mean(recent: Steps, window: int, value: Callable[[StepRecord], float | None]) -> Mean | None:
    """Return the mean of a window of steps; None: not all of them have the value."""
    numbers = [number for step in recent if (number := value(step)) is not None]
    return Mean(recent[-1].step, fmean(numbers)) if len(numbers) == window else None


def span(last: Mean | StepRecord, limits: Watch) -> str:
    return f"{limits.window} steps to {last.step}" if limits.window > 1 else f"step {last.step}"
