"""`rljob why RUN_DIR`: the health of a run in a sentence, and its last steps beside its usual ones. Pure.

ended badly? ─► engines away? ─► a finding of the watch? ─► slower than usual? ─► no better than at first? ─► well
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from rljob_api.control import Finding
from rljob_api.sections import RLJob
from rljob_cli.terminal.formats import seconds
from rljob_trainer.metrics import BETWEEN_STEPS
from rljob_trainer.reporting.past import past_of
from rljob_trainer.reporting.reading.history import History
from rljob_trainer.reporting.records import EngineRecord, StepRecord
from rljob_trainer.reporting.watch import anomaly_monitor, findings

Steps = Sequence[StepRecord]
WINDOW = 10
"""steps that are compared"""
SLOW = 1.5
"""a step that takes this many times the usual is slow"""
FLAT_AFTER = 50
"""steps after which the reward should have moved"""
CERTAIN = 3.0
"""standard errors that a change of the reward must exceed to be one"""


@dataclass(frozen=True, slots=True)
class Number:
    """A measurement of the last steps, beside the first ones, or the fastest ones for a time."""

    name: str
    now: float | None
    before: float | None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class RunHealth:
    """The answer."""

    sentence: str
    verdict: str
    """`Failed`, `Died`, `EnginesAway`, `NotSound`, `Slow`, `NotLearning`, `Finished`, `Stopped`, `New` or `Well`"""
    numbers: tuple[Number, ...]
    evidence: tuple[str, ...]
    """further sentences"""


def run_health(history: History, is_active: bool | None) -> RunHealth:
    """Return the health of a run; `is_active`: its driver runs; None: unknown."""
    steps = history.steps
    standing = found_now(history)
    notes = tuple(f"{each.name}: {each.evidence}. {each.advice}" for each in standing)
    verdict, sentence = next(_verdicts(history, standing, is_active))
    return RunHealth(sentence, verdict, tuple(_numbers(steps)), notes)


def found_now(history: History) -> tuple[Finding, ...]:
    """Return the findings that hold after the last step."""
    if not history.steps:
        return ()
    watching = anomaly_monitor(RLJob.model_validate(history.run.manifest).spec)
    past = past_of(history.steps, watching.limits.window)
    return findings(past, watching.limits, watching.bounds)


def _verdicts(history: History, standing: Sequence[Finding], is_active: bool | None) -> Iterator[tuple[str, str]]:
    """Yield what applies, the most important first."""
    at = f"after step {history.step} of {history.run.steps}"
    if history.outcome == "failed":
        yield "Failed", f"it failed {at}: {history.message or 'see the log'}"
    if history.outcome is None and is_active is False:
        yield "Died", f"its driver died {at} without a word; `rljob doctor` reads its logs"
    if away := _away(history.incidents) if history.outcome is None else []:
        last = away[-1]
        yield "EnginesAway", f"{_names(away)} did not come back: {last.cause}: {last.error.splitlines()[0]}"
    if standing:
        yield "NotSound", f"{at}, {' and '.join(each.name for each in standing)}: {standing[0].evidence}"
    if slow := _slow(history.steps):
        yield "Slow", slow
    if flat := _flat(history.steps):
        yield "NotLearning", flat
    if history.outcome == "finished":
        yield "Finished", f"it finished all {history.step} steps, and nothing is wrong"
    if history.outcome == "stopped":
        yield "Stopped", f"it was stopped {at}, and nothing was wrong; run it again to resume"
    if not history.steps:
        yield "New", "no step is finished yet"
    yield "Well", f"it goes as usual {at}: {_step_time(history.steps)} a step"


def _names(away: Sequence[EngineRecord]) -> str:
    return ", ".join(dict.fromkeys(each.engine for each in away))


def _away(incidents: Sequence[EngineRecord]) -> list[EngineRecord]:
    """Return the newest incident of each engine that has not returned since."""
    newest = {each.engine: each for each in incidents}
    return [each for each in newest.values() if each.return_seconds is None]


def _slow(steps: Steps) -> str | None:
    """Say which phase makes the last steps slower than the fastest ones of the run."""
    if len(steps) < 2 * WINDOW:
        return None
    now, usual = steps[-WINDOW:], fastest(steps)
    took, takes = _typical(now, own), _typical(usual, own)
    if took <= SLOW * takes:
        return None
    phases = dict.fromkeys(phase for step in now for phase in step.phase_seconds if phase not in BETWEEN_STEPS)
    grown = {name: _typical(now, phase(name)) - _typical(usual, phase(name)) for name in phases}
    worst = max(grown, key=lambda name: grown[name])
    return (
        f"it is slow: the last {WINDOW} steps took {seconds(took)} each, steps {usual[0].step} to {usual[-1].step}"
        f" {seconds(takes)}; most of it is {worst}, {seconds(_typical(now, phase(worst)))} instead of"
        f" {seconds(_typical(usual, phase(worst)))}"
    )


def _flat(steps: Steps) -> str | None:
    """Say that the reward has not risen since the first steps, if its noise would have let a rise be seen."""
    rewards = [step.reward_mean for step in steps if step.reward_mean is not None]
    if len(rewards) < FLAT_AFTER:
        return None
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    noise = CERTAIN * (pstdev(first) ** 2 / WINDOW + pstdev(last) ** 2 / WINDOW) ** 0.5
    if fmean(last) - fmean(first) > noise:
        return None
    return (
        f"it does not learn: the mean reward of the last {WINDOW} steps is {fmean(last):.3g}, of the first {WINDOW} it"
        f" was {fmean(first):.3g}, and a rise of {noise:.2g} would be noise"
    )


def _numbers(steps: Steps) -> Iterator[Number]:
    """Yield the times of each phase beside the fastest steps, then all else beside the first ones."""
    if not steps:
        return
    now, usual, first = steps[-WINDOW:], fastest(steps), steps[:WINDOW]
    yield Number("step", _typical(now, own), _typical(usual, own), "s")
    for name in dict.fromkeys(name for step in now for name in step.phase_seconds):
        if name in BETWEEN_STEPS:
            yield Number(f"{name}, each", _each(now, name), _each(steps, name), "s")
        else:
            yield Number(f"  {name}", _typical(now, phase(name)), _typical(usual, phase(name)), "s")
    if any(step.data_wait_seconds for step in now):
        yield Number("wait for samples", _typical(now, waited), _typical(usual, waited), "s")
    for name, value in MEASURED.items():
        if (after := _mean(now, value)) is not None:
            yield Number(name, after, _mean(first, value))


MEASURED: dict[str, Callable[[StepRecord], float | None]] = {
    "rollout tokens/s": lambda step: step.rollout_tokens_per_second,
    "train tokens/s": lambda step: step.train_tokens_per_second,
    "wait for samples, share": lambda step: step.data_wait,
    "busiest engine / mean": lambda step: step.engine_imbalance,
    "reward": lambda step: step.reward_mean,
    "groups without signal, share": lambda step: step.groups_without_signal,
    "truncated, share": lambda step: step.truncated,
    "response length": lambda step: step.response_length,
    "entropy [nats]": lambda step: step.entropy,
    "KL [nats]": lambda step: step.kl,
    "gradient norm": lambda step: step.grad_norm,
    "staleness [steps]": lambda step: step.staleness,
    "engine against learner [nats]": lambda step: step.logprob_mismatch,
}


def fastest(steps: Steps) -> Steps:
    """Return the window of steps that took least, by its median; the first step of a run is rarely in it."""
    starts = range(0, max(1, len(steps) - WINDOW + 1), WINDOW)
    return min((steps[start : start + WINDOW] for start in starts), key=lambda window: _typical(window, own))


def own(step: StepRecord) -> float:
    """Return the seconds of a step without those that only some steps have."""
    return sum(value for name, value in step.phase_seconds.items() if name not in BETWEEN_STEPS)


def phase(name: str) -> Callable[[StepRecord], float]:
    return lambda step: step.phase_seconds.get(name, 0.0)


def waited(step: StepRecord) -> float:
    """Return how long the learner waited for samples [s]."""
    return step.data_wait_seconds


def _each(steps: Steps, name: str) -> float | None:
    """Return the median seconds of a phase that only some steps have; None: none of these has it."""
    known = [step.phase_seconds[name] for step in steps if step.phase_seconds.get(name)]
    return median(known) if known else None


def _typical(steps: Steps, value: Callable[[StepRecord], float]) -> float:
    return median(value(step) for step in steps)


def _step_time(steps: Steps) -> str:
    return seconds(_typical(steps[-WINDOW:], own))


def _mean(steps: Steps, value: Callable[[StepRecord], float | None]) -> float | None:
    known = [number for step in steps if (number := value(step)) is not None]
    return fmean(known) if known else None
