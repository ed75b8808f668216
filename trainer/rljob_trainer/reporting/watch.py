"""Watches a run: what goes wrong slowly, told by name, with the numbers that say so. Nothing is stopped or changed.

Each detector is a function of all steps so far; it says what holds now. A finding is told when it begins to hold, and
again only if it has not held in between.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median

from rljob_api.sections import Device, Spec, Watch
from rljob_trainer.reporting.first_step import MEAN_LIMIT
from rljob_trainer.reporting.records import StepRecord

Steps = Sequence[StepRecord]
NAMES = (
    "RewardCollapse",
    "EntropyCollapse",
    "GradientSpike",
    "NonFinite",
    "Truncation",
    "Repetition",
    "NoSignal",
    "Mismatch",
    "Staleness",
    "DataWait",
)
"""all that can be found"""
USUAL_WAIT = 0.5
"""beyond it the learner would not be waited for if it had half of its GPUs"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that holds now."""

    name: str
    """in a word, `RewardCollapse`"""
    evidence: str
    """the numbers, and the limit with its field"""
    advice: str
    """where to look first"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits that follow from more than `spec.watch`; infinite: any."""

    mismatch: float = inf
    """of the mean |engine - learner| [nats]"""
    oldest: float = inf
    """of the age of a single token [steps]"""
    data_wait: float = inf
    """of the share of a step for which the learner waits"""


@dataclass
class Lookout:
    """The detectors, and what they have found so far."""

    limits: Watch
    bounds: Bounds
    _steps: list[StepRecord] = field(default_factory=list)
    _standing: dict[str, Finding] = field(default_factory=dict)

    def after(self, step: StepRecord) -> tuple[Finding, ...]:
        """Return what has begun to hold with this step."""
        self._steps.append(step)
        found = findings(self._steps, self.limits, self.bounds)
        new = tuple(finding for finding in found if finding.name not in self._standing)
        # As it began: the numbers of every later step would be news at every step.
        self._standing = {finding.name: self._standing.get(finding.name, finding) for finding in found}
        return new

    @property
    def standing(self) -> tuple[Finding, ...]:
        """What holds now, each with the numbers with which it began to hold."""
        return tuple(self._standing.values())


def lookout(spec: Spec) -> Lookout:
    """Return a lookout with the limits of a manifest."""
    return Lookout(
        spec.watch,
        Bounds(
            mismatch=mismatch_limit(spec),
            oldest=spec.ahead.max_staleness if spec.ahead else inf,
            data_wait=data_wait_limit(spec),
        ),
    )


def mismatch_limit(spec: Spec) -> float:
    """Return the limit of the mismatch, which is the first step's unless the manifest says.

    Where rollouts are ahead the mismatch is also what the learner has changed since, and nothing is wrong with that.
    """
    if spec.watch.mismatch is not None:
        return spec.watch.mismatch
    return inf if spec.ahead else MEAN_LIMIT[spec.training.precision]


def data_wait_limit(spec: Spec) -> float:
    """Return the limit of the wait for samples.

    Unless the manifest says, it is for learners that have GPUs of their own and need not wait: where they take turns
    with the engines, a wait is how it should be. Nobody waits in a run without learner or engines.
    """
    if not (spec.has_engines and spec.debug.learner):
        return inf
    if spec.watch.data_wait is not None:
        return spec.watch.data_wait
    return USUAL_WAIT if spec.ahead and spec.runtime.device is Device.GPU else inf


def findings(steps: Steps, limits: Watch, bounds: Bounds) -> tuple[Finding, ...]:
    """Return everything that holds after these steps."""
    found = [
        *(detector(steps, limits) for detector in DETECTORS),
        *(detector(steps, limits, bounds) for detector in BOUNDED),
    ]
    return tuple(finding for finding in found if finding)


def reward_collapse(steps: Steps, limits: Watch) -> Finding | None:
    """The mean reward has lost a share of the best that it was."""
    windows = list(means(steps, limits.window, lambda step: step.reward_mean))
    if len(windows) < 2:
        return None
    (last, now), (first, best) = windows[-1], max(windows, key=lambda window: window[1])
    if best - now <= limits.reward_drop * abs(best):
        return None
    return Finding(
        "RewardCollapse",
        f"mean reward of {span(last, limits)} is {now:.3g}, of {span(first, limits)} it was {best:.3g};"
        f" watch.rewardDrop {limits.reward_drop:g}",
        "Look at the samples of both: go back to a checkpoint of then, with a lower learning rate, or a KL penalty"
        " (algorithm.kl).",
    )


def entropy_collapse(steps: Steps, limits: Watch) -> Finding | None:
    """The policy has become sure of everything, and tries nothing new; what learns the data's responses need not."""
    windows = list(means(steps, limits.window, lambda step: None if step.reward_mean is None else step.entropy))
    if len(windows) < 2:
        return None
    (_, before), (last, now) = windows[0], windows[-1]
    if now >= limits.entropy_share * before:
        return None
    return Finding(
        "EntropyCollapse",
        f"mean entropy of {span(last, limits)} is {now:.3g} nats, of the first {limits.window} steps it was"
        f" {before:.3g}; watch.entropyShare {limits.entropy_share:g}",
        "Samples of a group become alike and teach nothing: raise algorithm.clipHigh or algorithm.entropyCoefficient,"
        " or lower the learning rate.",
    )


def gradient_spike(steps: Steps, limits: Watch) -> Finding | None:
    """One gradient is far larger than those before it."""
    *before, last = steps
    norms = [step.grad_norm for step in before[-limits.window :] if step.grad_norm]
    if last.grad_norm is None or len(norms) < limits.window:
        return None
    usual = median(norms)
    if last.grad_norm <= limits.gradient_spike * usual:
        return None
    return Finding(
        "GradientSpike",
        f"gradient norm of step {last.step} is {last.grad_norm:.3g}, the median of the {limits.window} steps before is"
        f" {usual:.3g}; watch.gradientSpike {limits.gradient_spike:g}",
        "Look at the step's samples (debug.dumpRollouts keeps them): very long or garbled ones, data that has been"
        " through a chat template already. training.optimizer.clipGrad has limited the step.",
    )


def non_finite(steps: Steps, limits: Watch) -> Finding | None:
    """Optimizer steps were skipped. One is enough by default, so a whole window is not waited for."""
    recent = steps[-limits.window :]
    faulty = [step for step in recent if step.skipped]
    if sum(step.skipped for step in faulty) <= limits.non_finite:
        return None
    return Finding(
        "NonFinite",
        f"optimizer steps of steps {recent[0].step} to {recent[-1].step} that were skipped because a gradient was not"
        f" finite: {sum(step.skipped for step in faulty)}, the first in step {faulty[0].step}, the last in step"
        f" {faulty[-1].step}; {sum(step.skipped for step in steps)} in the whole run; watch.nonFinite"
        f" {limits.non_finite}",
        "Look at the step's samples (debug.dumpRollouts keeps them), and at loss and gradient norm before it: a lower"
        " learning rate, a longer warm-up. Beyond training.optimizer.maxSkippedSteps the run ends.",
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
        "Responses are cut off before their answer: raise sampling.maxNewTokens, or look whether a stop token comes"
        " (`rljob plan`).",
    )


def repetition(steps: Steps, limits: Watch) -> Finding | None:
    """Responses go in circles."""
    return above(
        steps,
        limits,
        "Repetition",
        lambda step: step.repeated,
        limits.repeated,
        "share of 4-grams that came before in the same response",
        "watch.repeated",
        "The reward pays for length, or the weights are damaged: look at samples, and at RewardCollapse and Mismatch.",
    )


def no_signal(steps: Steps, limits: Watch) -> Finding | None:
    """There is next to nothing to learn from."""
    return above(
        steps,
        limits,
        "NoSignal",
        lambda step: step.groups_without_signal,
        limits.no_signal,
        "share of groups whose samples all got the same reward",
        "watch.noSignal",
        "Questions are too easy or too hard, or the reward judges all alike: other questions, more samplesPerPrompt.",
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
        "The learner is trained on samples of another policy: compare with the first step; a replay"
        " (debug.replay) tells whether it is the engines.",
    )


def staleness(steps: Steps, limits: Watch, bounds: Bounds) -> Finding | None:
    """Samples are older than they may be, or than they are wanted."""
    last = steps[-1]
    if last.max_staleness is not None and last.max_staleness > bounds.oldest:
        return Finding(
            "Staleness",
            f"the oldest token of step {last.step} was made by weights that are {last.max_staleness} steps old;"
            f" rollout.async.maxStaleness {bounds.oldest:g}",
            "No sample may be that old, and each is looked at when it comes: keep the rollouts (debug.dumpRollouts),"
            " whose `version` and `carried` tell which weights made what, and report it.",
        )
    return above(
        steps,
        limits,
        "Staleness",
        lambda step: step.staleness,
        inf if limits.staleness is None else limits.staleness,
        "mean age of the weights that made the response tokens [steps]",
        "watch.staleness",
        "Engines are far ahead of the learner, which is the slower side: lower rollout.async.maxStaleness, or give the"
        " learner more GPUs; algorithm.importanceSampling accounts for the difference.",
    )


def data_wait(steps: Steps, limits: Watch, bounds: Bounds) -> Finding | None:
    """The learner stands idle because samples are not there."""
    recent = steps[-limits.window :]
    windows = list(means(recent, limits.window, lambda step: step.data_wait))
    if not windows or windows[-1][1] <= bounds.data_wait:
        return None
    last, share = windows[-1]
    waited = fmean(step.data_wait_seconds for step in recent)
    trained = fmean(step.phase_seconds.get("train", 0.0) for step in recent)
    return Finding(
        "DataWait",
        f"share of {span(last, limits)} for which the learner waited for samples is {share:.3g}: {waited:.3g} s of a"
        f" step, in which it trained for {trained:.3g} s; watch.dataWait {bounds.data_wait:g}",
        "Rollouts are the slower side: more rollout.engines, or GPUs of the learner for them; shorter or fewer"
        " responses. Where learner and engines take turns, rollout.async; where single responses are long, its"
        " partial.",
    )


DETECTORS: tuple[Callable[[Steps, Watch], Finding | None], ...] = (
    reward_collapse,
    entropy_collapse,
    gradient_spike,
    non_finite,
    truncation,
    repetition,
    no_signal,
)
BOUNDED: tuple[Callable[[Steps, Watch, Bounds], Finding | None], ...] = (disagreement, staleness, data_wait)


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
    """Return a finding when the mean over the last window is above its limit."""
    windows = list(means(steps[-limits.window :], limits.window, value))
    if not windows or windows[-1][1] <= limit:
        return None
    last, now = windows[-1]
    return Finding(name, f"{what} of {span(last, limits)} is {now:.3g}; {field_name} {limit:g}", advice)


def means(steps: Steps, window: int, value: Callable[[StepRecord], float | None]) -> Iterator[tuple[StepRecord, float]]:
    """Yield the last step and the mean of each full window of steps that have the value; windows do not overlap.

    They are counted back from the last step, so the newest is always whole.
    """
    measured = [(step, number) for step in steps if (number := value(step)) is not None]
    for end in range(len(measured) % window + window, len(measured) + 1, window):
        yield measured[end - 1][0], fmean(number for _, number in measured[end - window : end])


def span(last: StepRecord, limits: Watch) -> str:
    return f"{limits.window} steps to {last.step}" if limits.window > 1 else f"step {last.step}"
