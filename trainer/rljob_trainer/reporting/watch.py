"""Watches a run: what goes wrong slowly, told by name, with the numbers that say so. Nothing is stopped or changed.

Each detector is a function of all steps so far; it says what holds now. A finding is told when it begins to hold, and
again only if it has not held in between.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median

from rljob_api.sections import Spec, Watch
from rljob_trainer.reporting.first_step import MEAN_LIMIT
from rljob_trainer.reporting.records import StepRecord

Steps = Sequence[StepRecord]
NAMES = (
    "RewardCollapse",
    "EntropyCollapse",
    "GradientSpike",
    "Truncation",
    "Repetition",
    "NoSignal",
    "Mismatch",
)
"""all that can be found"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that holds now."""

    name: str
    """in a word, `RewardCollapse`"""
    evidence: str
    """the numbers, and the limit with its field"""
    advice: str
    """where to look first"""


@dataclass
class Lookout:
    """The detectors, and what they have found so far."""

    limits: Watch
    mismatch: float
    """limit of the mean |engine - learner| [nats]; infinite: any"""
    _steps: list[StepRecord] = field(default_factory=list)
    _standing: dict[str, Finding] = field(default_factory=dict)

    def after(self, step: StepRecord) -> tuple[Finding, ...]:
        """Return what has begun to hold with this step."""
        self._steps.append(step)
        found = findings(self._steps, self.limits, self.mismatch)
        new = tuple(finding for finding in found if finding.name not in self._standing)
        # As it began: the numbers of every later step would be news at every step.
        self._standing = {finding.name: self._standing.get(finding.name, finding) for finding in found}
        return new

    @property
    def standing(self) -> tuple[Finding, ...]:
        """What holds now, each with the numbers with which it began to hold."""
        return tuple(self._standing.values())


def lookout(spec: Spec) -> Lookout:
    """Return a lookout with the limits of a manifest; that of the mismatch is the first step's unless it says.

    Where rollouts are ahead the mismatch is also what the learner has changed since, and nothing is wrong with that.
    """
    usual = inf if spec.ahead else MEAN_LIMIT[spec.training.precision]
    return Lookout(spec.watch, usual if spec.watch.mismatch is None else spec.watch.mismatch)


def findings(steps: Steps, limits: Watch, mismatch: float) -> tuple[Finding, ...]:
    """Return everything that holds after these steps."""
    found = [detector(steps, limits) for detector in DETECTORS]
    return tuple(finding for finding in [*found, disagreement(steps, limits, mismatch)] if finding)


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
    """The policy has become sure of everything, and tries nothing new."""
    windows = list(means(steps, limits.window, lambda step: step.entropy))
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


def disagreement(steps: Steps, limits: Watch, mismatch: float) -> Finding | None:
    """Engines and learner compute different probabilities."""
    return above(
        steps,
        limits,
        "Mismatch",
        lambda step: step.logprob_mismatch,
        mismatch,
        "mean |engine - learner| of log-probabilities [nats]",
        "watch.mismatch",
        "The learner is trained on samples of another policy: compare with the first step; a replay"
        " (debug.replay) tells whether it is the engines.",
    )


DETECTORS: tuple[Callable[[Steps, Watch], Finding | None], ...] = (
    reward_collapse,
    entropy_collapse,
    gradient_spike,
    truncation,
    repetition,
    no_signal,
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
