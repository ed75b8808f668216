"""The history of a run: the records of its events.jsonl by kind, and values derived from them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rljob_api.control import Goodput
from rljob_trainer.metrics import rate
from rljob_trainer.reporting.events import FILE_NAME, read_events
from rljob_trainer.reporting.goodput import TimeSpent
from rljob_trainer.reporting.reading.step_windows import StepWindows
from rljob_trainer.reporting.records import (
    AccuracyRecord,
    CheckpointRecord,
    EndRecord,
    EngineRecord,
    EvaluationRecord,
    FindingRecord,
    FirstStepRecord,
    PerplexityRecord,
    ReadyRecord,
    Record,
    RunRecord,
    SamplesRecord,
    StepRecord,
    SummaryRecord,
)

_ByStep = TypeVar("_ByStep", EvaluationRecord, PerplexityRecord, SamplesRecord)


class NotARunError(ValueError):
    """The directory holds no run."""


@dataclass(frozen=True)
class History:
    """All records of a run. Each step, evaluation and set of samples occurs once, in order of steps."""

    runs: tuple[RunRecord, ...]
    """one for each start of the driver"""
    ready: tuple[ReadyRecord, ...]
    """one for each start that finished a step"""
    steps: tuple[StepRecord, ...]
    """or windows of them, see `step_windows.py`"""
    evaluations: tuple[EvaluationRecord, ...]
    perplexities: tuple[PerplexityRecord, ...]
    incidents: tuple[EngineRecord, ...]
    findings: tuple[FindingRecord, ...]
    first_step: FirstStepRecord | None
    """None: the first step is not finished, or was not checked"""
    samples: tuple[SamplesRecord, ...]
    ends: tuple[EndRecord, ...]
    last_time: float
    """of the last record, unix time [s]"""
    goodput: Goodput | None
    """None: no time has passed yet"""
    windows: StepWindows = field(default_factory=StepWindows)
    """that `steps` are of; of size 1: each is a step"""

    @property
    def numbers(self) -> tuple[int, ...]:
        """How many steps each of `steps` stands for."""
        return self.windows.numbers if self.windows.size > 1 else (1,) * len(self.steps)

    @property
    def ends_of_steps(self) -> tuple[StepRecord, ...]:
        """The first and the last step, each by itself; empty: there is none."""
        ends = (self.windows.first, self.windows.last) if self.windows.size > 1 else (*self.steps[:1], *self.steps[-1:])
        return tuple(step for step in ends if step is not None)

    @property
    def run(self) -> RunRecord:
        return self.runs[-1]

    @property
    def driver_starts(self) -> int:
        return sum(not run.new_ranks for run in self.runs)

    @property
    def step(self) -> int:
        """Steps finished."""
        return self.steps[-1].step if self.steps else 0

    @property
    def outcome(self) -> str | None:
        """How the last attempt ended; None while it runs, or when it died without a record."""
        return self.ends[-1].outcome if self.ends and self.ends[-1].time >= self.run.time else None

    @property
    def message(self) -> str:
        """Why the last attempt ended; may be empty."""
        return self.ends[-1].message if self.outcome is not None else ""

    @property
    def seconds(self) -> float:
        """Time from the first start of the driver to the last record [s]."""
        return self.last_time - self.runs[0].time + sum(self.runs[0].phase_seconds.values())

    @property
    def before(self) -> EvaluationRecord | None:
        return self.evaluations[0] if self.evaluations else None

    @property
    def after(self) -> EvaluationRecord | None:
        return self.evaluations[-1] if len(self.evaluations) > 1 else None

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """Names of the evaluation sets of the newest evaluation, without the held-out questions."""
        return tuple(self.evaluations[-1].sets) if self.evaluations else ()

    def accuracies(self, evaluation_set: str) -> Mapping[int, AccuracyRecord]:
        """Return the accuracies on a set by step; a set may have been added when the run was resumed."""
        found = {each.step: each.sets.get(evaluation_set) for each in self.evaluations}
        return {step: accuracy for step, accuracy in found.items() if accuracy is not None}

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of the wall clock by part, the longest first."""
        return self.goodput.seconds if self.goodput else {}

    @property
    def rollout_tokens_per_second(self) -> float | None:
        """Response tokens per second while engines generated."""
        return rate(round(self.total(lambda step: step.rollout_tokens)), self.total(lambda step: step.rollout_seconds))

    @property
    def train_tokens_per_second(self) -> float | None:
        """Trained tokens per second of the train phase."""
        seconds = self.total(lambda step: step.phase_seconds.get("train", 0.0))
        return rate(round(self.total(lambda step: step.train_tokens)), seconds)

    def total(self, value: Callable[[StepRecord], float]) -> float:
        """Return the sum of a value over all steps."""
        return sum(number * value(step) for step, number in zip(self.steps, self.numbers, strict=True))


def read_history(run_directory: Path, most_steps: int | None = None) -> History:
    """Return the history of a run, with at most `most_steps` windows of steps; None: each step by itself.

    Raises NotARunError if there is none, EventsError if it is damaged.
    """
    path = run_directory / FILE_NAME
    if not path.is_file():
        raise NotARunError(f"{run_directory} is not a run: it has no {FILE_NAME}")
    return history_of(read_events(path), str(path), most_steps)


def history_of(events: Iterable[Record], name: str, most_steps: int | None = None) -> History:
    """Return the history in the records of the file `name`, as `read_history`.

    Raises NotARunError if no driver has started.
    """
    windows, spent, records, last_time = StepWindows(most_steps), TimeSpent(), [], 0.0
    for event in events:
        last_time, spent = max(last_time, event.time), spent.after(event)
        if isinstance(event, StepRecord):
            windows.add(event)
        elif not isinstance(event, CheckpointRecord | SummaryRecord):  # no reader asks for these
            records.append(event)
    runs = tuple(record for record in records if isinstance(record, RunRecord))
    if not runs:
        raise NotARunError(f"{name} has no record of a start")
    return History(
        runs=runs,
        ready=tuple(record for record in records if isinstance(record, ReadyRecord)),
        steps=windows.records,
        evaluations=_by_step(records, EvaluationRecord),
        perplexities=_by_step(records, PerplexityRecord),
        incidents=_incidents(records),
        findings=tuple(record for record in records if isinstance(record, FindingRecord)),
        first_step=next((record for record in reversed(records) if isinstance(record, FirstStepRecord)), None),
        samples=_by_step(records, SamplesRecord),
        ends=tuple(record for record in records if isinstance(record, EndRecord)),
        last_time=last_time,
        goodput=spent.goodput,
        windows=windows,
    )


def result(history: History) -> str:
    """Return the result of the run in a sentence."""
    before, after = history.before, history.after
    if before is not None and after is not None:
        return f"held-out accuracy {accuracy_change(before, after)}"
    if len(history.perplexities) > 1:
        first, *_, last = history.perplexities
        return f"held-out perplexity {first.perplexity:.3g} → {last.perplexity:.3g}"
    ends = history.ends_of_steps
    steps = (*ends[:1], *history.steps, *ends[-1:])
    rewards = [step.reward_mean for step in steps if step.reward_mean is not None]
    if rewards:
        return f"mean reward {rewards[0]:.2f} → {rewards[-1]:.2f}"
    perplexities = [step.perplexity for step in steps if step.perplexity is not None]
    if perplexities:
        return f"perplexity {perplexities[0]:.3g} → {perplexities[-1]:.3g}"
    return "no step finished yet"


def accuracy_change(before: AccuracyRecord, after: AccuracyRecord) -> str:
    """Return, for example, `0.12 → 0.51 (greedy 0.33 → 0.52)`."""
    greedy = _change(before.greedy, after.greedy)
    return _change(before.sampled, after.sampled) + (f" (greedy {greedy})" if greedy else "")


def _change(before: float | None, after: float | None) -> str:
    return f"{before:.2f} → {after:.2f}" if before is not None and after is not None else ""


def _incidents(records: Iterable[Record]) -> tuple[EngineRecord, ...]:
    """Return the last record of each failure, in order of detection."""
    found: dict[tuple[float, str, int], EngineRecord] = {}
    for record in records:
        if isinstance(record, EngineRecord):
            found[record.time, record.engine, record.generation] = record
    return tuple(found[failure] for failure in sorted(found))


def _by_step(records: Iterable[Record], kind: type[_ByStep]) -> tuple[_ByStep, ...]:
    """Return the records of one kind by step; of two of the same step, the later one."""
    found = {record.step: record for record in records if isinstance(record, kind)}
    return tuple(found[step] for step in sorted(found))
