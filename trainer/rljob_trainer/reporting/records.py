"""The lines of events.jsonl: the events of a run, in order of time.

`Report` creates them, every sink receives them, the HTML report and the command line read them back. Readers ignore
fields that a newer version added. Numbers that are not finite are written as null.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from rljob_api.credentials import without_values
from rljob_trainer.gpu_metrics import GpuSummary, GpuUse
from rljob_trainer.metrics import StepMetrics


def _encodable(text: Any) -> Any:
    """Return text that fits into UTF-8: a lone surrogate becomes its escape, for example `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_encodable)]
"""text from outside: a question, a response, an error message"""

PhaseSeconds = Mapping[str, float]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="null")


class StepRecord(_Line, StepMetrics):
    """A step is finished: its metrics, see `metrics.py`."""

    kind: Literal["step"] = "step"
    time: float
    """unix time [s]"""
    step: int
    """optimizer steps finished, counted from 1 over the whole run"""
    reward_parts: Mapping[str, float] = Field(default_factory=dict)
    engine_samples: Mapping[str, int] = Field(default_factory=dict)
    gpus: Mapping[str, GpuUse] = Field(default_factory=dict)
    gpu_summary: GpuSummary | None = None
    losses: Mapping[str, int] = Field(default_factory=dict)
    phase_seconds: PhaseSeconds


class RunRecord(_Line):
    """The driver started, for the first time or again, or began again with new ranks of the learner."""

    kind: Literal["run"] = "run"
    time: float
    job: str
    model: str
    task: str
    """short name of the training data"""
    steps: int
    """length of the run"""
    attempt: int
    """driver starts so far, counted from 1"""
    step: int
    """step of the checkpoint that it resumes from; 0: a new run"""
    new_ranks: bool = False
    """whether the driver was running already"""
    lost_steps: int = 0
    """steps after that checkpoint, which are repeated"""
    lost_seconds: float = 0.0
    gpus: int = 0
    """of the run; on CPU, processes. 0: an older version did not say"""
    gpus_per_engine: int = 0
    manifest: Annotated[dict[str, Any], AfterValidator(without_values)]
    """the RLJob with its defaults filled in, and without the values of environment variables"""
    phase_seconds: PhaseSeconds = Field(default_factory=dict)
    """before this record [s]"""


class ReadyRecord(_Line):
    """Time until engines and learner were ready and the first weights were published. Written with the next step."""

    kind: Literal["ready"] = "ready"
    time: float
    step: int
    """steps that were finished"""
    phase_seconds: PhaseSeconds
    """start and load [s]"""


class AccuracyRecord(_Line):
    """Accuracy on one set of questions."""

    sampled: float
    """mean reward at the sampling temperature"""
    greedy: float | None
    """mean reward at temperature 0; absent: not measured"""
    n: int
    """questions"""


class EvaluationRecord(AccuracyRecord):
    """Accuracy on the held-out questions, and on each further set."""

    kind: Literal["evaluation"] = "evaluation"
    time: float
    step: int
    """0: before the first step"""
    reward_failures: int = 0
    """judgements that failed, in all sets"""
    lost_samples: int = 0
    """samples that were not made or not judged, and do not count, in all sets"""
    sets: Mapping[str, AccuracyRecord] = Field(default_factory=dict)
    """of each of `data.evaluationSets`, by its name"""


class PerplexityRecord(_Line):
    """Perplexity of the data's responses to the held-out questions, under the learner."""

    kind: Literal["perplexity"] = "perplexity"
    time: float
    step: int
    """0: before the first step"""
    perplexity: float
    """exp of the mean negative log-probability of their tokens"""
    n: int
    """responses"""


class EngineRecord(_Line):
    """A failure of an engine or the router, and its recovery. The last record of a failure counts."""

    kind: Literal["engine"] = "engine"
    time: float
    """when the failure was detected; the same in all records of one failure"""
    step: int
    """steps that were finished"""
    engine: Text
    generation: int
    """counts the processes of that name"""
    cause: Text
    """for example `ProcessExited`"""
    error: Text
    """error message"""
    detect_seconds: float | None = None
    """from the last successful probe to the detection"""
    reroute_seconds: float | None = None
    """from the detection until the router stopped sending requests"""
    return_seconds: float | None = None
    """from the detection until its successor served the current weights; absent: not yet, or never"""


class SampleRecord(_Line):
    question: Text
    response: Text
    label: Text
    reward: float | None
    parts: Mapping[str, float] = Field(default_factory=dict)
    """score of each of several rewards, before its weight"""
    version: int
    """version of the weights that generated the response"""


class FindingRecord(_Line):
    """An anomaly began, see `watch.py`."""

    kind: Literal["finding"] = "finding"
    time: float
    step: int
    name: Text
    """for example `RewardCollapse`"""
    evidence: Text
    advice: Text


class CheckRecord(_Line):
    """One check of the first step."""

    name: Text
    value: float | None
    """None: it was not finite"""
    limit: float
    """a healthy run is at or below it"""
    means: Text
    """what a value above the limit means"""

    @property
    def breached(self) -> bool:
        return self.value is None or self.value > self.limit

    @property
    def summary(self) -> str:
        """For example `truncated responses, share: 0.75, most often at most 0.5`."""
        value = "not finite" if self.value is None else f"{self.value:.3g}"
        return f"{self.name}: {value}, most often at most {self.limit:g}"


class SegmentRecord(_Line):
    """A part of a response by one author."""

    text: Text
    by_model: bool


class RenderedRecord(_Line):
    prompt: Text
    """as sent to the engine, with all special tokens"""
    response: Text
    finish_reason: Text
    reward: float | None
    segments: tuple[SegmentRecord, ...] = ()
    """the response by author, with all special tokens; empty: the model wrote all of it"""


class FirstStepRecord(_Line):
    """Results of the checks of the first step, see `first_step.py`."""

    kind: Literal["first_step"] = "first_step"
    time: float
    step: Literal[1] = 1
    checkpoint: Text
    """that training started from, as in the manifest"""
    fingerprint: Text
    """of its configuration and a sample of its weights"""
    checks: tuple[CheckRecord, ...]
    samples: tuple[RenderedRecord, ...]


class SamplesRecord(_Line):
    kind: Literal["samples"] = "samples"
    time: float
    step: int
    samples: tuple[SampleRecord, ...]


class CheckpointRecord(_Line):
    kind: Literal["checkpoint"] = "checkpoint"
    time: float
    step: int
    path: Text


class SummaryRecord(_Line):
    """What all records before this one come to: a driver that starts again reads it and what follows it."""

    kind: Literal["summary"] = "summary"
    time: float
    step: int
    state: dict[str, Any]
    """see `summaries.py`; a version that does not know it reads all records"""


class EndRecord(_Line):
    kind: Literal["end"] = "end"
    time: float
    step: int
    outcome: Text
    """`finished`, `stopped` (drained: can be resumed) or `failed`"""
    message: Text = ""
    phase_seconds: PhaseSeconds = Field(default_factory=dict)
    """after the last step: final evaluation, checkpoint and stop [s]"""


Record = (
    RunRecord
    | ReadyRecord
    | StepRecord
    | EvaluationRecord
    | PerplexityRecord
    | EngineRecord
    | FindingRecord
    | FirstStepRecord
    | SamplesRecord
    | CheckpointRecord
    | SummaryRecord
    | EndRecord
)
KINDS = frozenset(
    {
        "run",
        "ready",
        "step",
        "evaluation",
        "perplexity",
        "engine",
        "finding",
        "first_step",
        "samples",
        "checkpoint",
        "summary",
        "end",
    }
)
SETUP = frozenset({"start", "load"})
"""phases of a driver start, which are not part of a step"""


class Sink(Protocol):
    """Receives all records, from one thread at a time."""

    def record(self, record: Record) -> None: ...

    def close(self) -> None:
        """Write everything received so far."""
