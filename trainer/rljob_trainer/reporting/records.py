"""The lines of events.jsonl: what a run did, in the order in which it did it.

`Report` makes them, every sink receives them, the HTML report and the command line read them back. Fields that a newer
version has added are ignored on reading; numbers that are not finite become null.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _encodable(text: Any) -> Any:
    """Return text that fits into UTF-8: a lone surrogate becomes its escape, for example `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_encodable)]
"""text from outside: a question, a model's response, a message"""

PhaseSeconds = Mapping[str, float]

BETWEEN_STEPS = frozenset({"evaluate", "checkpoint"})
"""phases that stand with a step and are none of its own"""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="null")


class StepMetrics(_Line):
    """What one turn of the loop measured. None: this job does not compute it, or it was not finite."""

    reward_mean: float | None
    reward_std: float | None = None
    """standard deviation over all samples of the step"""
    reward_parts: Mapping[str, float] = Field(default_factory=dict)
    """mean of each of several rewards, before its weight; empty where there is one reward"""
    reward_failures: int = 0
    """judgements that failed and got `reward.failureScore`"""
    groups_without_signal: float | None = None
    """share of the groups whose samples all got the same reward, and which therefore teach nothing"""
    groups_dropped: int = 0
    """groups that were made and not trained on; what is said of rewards and responses is said of all groups"""
    response_length: float | None
    """mean response [tokens]"""
    truncated: float | None
    """share of the responses that reached the token limit"""
    loss: float | None
    grad_norm: float | None
    """before clipping"""
    learning_rate: float | None
    entropy: float | None = None
    """mean over response tokens [nats]"""
    kl: float | None = None
    """mean estimate against the reference model, or against distillation's teacher [nats]"""
    perplexity: float | None = None
    """of the response tokens, by the learner that trains on them"""
    clip_fraction: float | None = None
    """share of the response tokens whose ratio was clipped"""
    logprob_mismatch: float | None = None
    """mean |engine - learner| over the log-probabilities of the response tokens [nats]"""
    importance_weight: float | None = None
    """mean importance weight between engine and learner over the response tokens, as it was used"""
    importance_cut: float | None = None
    """share of the response tokens whose importance weight was truncated or masked"""
    staleness: float | None = None
    """steps since the weights that made a token, mean over the response tokens; only where rollouts are ahead"""
    max_staleness: int | None = None
    """of the oldest token [steps]"""
    value_loss: float | None = None
    """of the critic, as the next three; None: there is no critic"""
    value_clip_fraction: float | None = None
    """share of the response tokens whose value loss was bounded"""
    explained_variance: float | None = None
    """1 - var(return - value) / var(return) over the response tokens, before the critic was trained on them"""
    critic_grad_norm: float | None = None
    """before clipping"""
    repeated: float | None = None
    """share of the 4-grams that occurred before in their response, of at most 64 responses"""
    rollout_tokens: int
    """response tokens that the engines made; 0 without engines"""
    train_tokens: int
    """prompt and response tokens that the learner trained on"""
    version: int
    """version of the weights that this step published"""
    publish_wait_seconds: float = 0.0
    """part of the phase `publish`: until responses that were being made had been answered or cut off [s]"""
    skipped: int = 0
    """optimizer steps skipped for a gradient that was not finite"""


class StepRecord(StepMetrics):
    kind: Literal["step"] = "step"
    time: float
    """unix time [s]"""
    step: int
    """optimizer steps finished, counted from 1 over the whole run"""
    phase_seconds: PhaseSeconds
    """all wall-clock time since the last step, or since the start, by phase [s]"""

    @property
    def seconds(self) -> float:
        return sum(self.phase_seconds.values())

    @property
    def data_wait(self) -> float | None:
        """Share of the step for which the learner waited for samples; None: it took no time.

        What is done between two steps does not belong to it: a step is not quicker for an evaluation after it.
        """
        own = sum(seconds for phase, seconds in self.phase_seconds.items() if phase not in BETWEEN_STEPS)
        return self.data_wait_seconds / own if own > 0 else None

    @property
    def data_wait_seconds(self) -> float:
        """How long the learner waited for samples: to train on them, or for weights to be published behind them [s]."""
        return self.phase_seconds.get("rollout", 0.0) + self.publish_wait_seconds

    @property
    def rollout_seconds(self) -> float:
        """How long engines generated: in the rollout phase, or all the time where rollouts are ahead [s]."""
        return self.phase_seconds.get("rollout", 0.0) if self.staleness is None else self.seconds

    @property
    def perplexity_of_data(self) -> float | None:
        """Perplexity of what was learned where no reward judged it: of the data's own responses."""
        return self.perplexity if self.reward_mean is None else None

    @property
    def rollout_tokens_per_second(self) -> float | None:
        return rate(self.rollout_tokens, self.rollout_seconds)

    @property
    def train_tokens_per_second(self) -> float | None:
        return rate(self.train_tokens, self.phase_seconds.get("train", 0.0))


class RunRecord(_Line):
    """The driver has started: the first time, or again."""

    kind: Literal["run"] = "run"
    time: float
    job: str
    model: str
    task: str
    """what is trained on, in a word"""
    steps: int
    """length of the run"""
    attempt: int
    """driver starts so far, counted from 1"""
    step: int
    """the step of the checkpoint it goes on from; 0: from the beginning"""
    lost_steps: int = 0
    """steps of earlier attempts that were after that checkpoint and are done again"""
    lost_seconds: float = 0.0
    manifest: dict[str, Any]
    """the RLJob with its defaults filled in"""
    phase_seconds: PhaseSeconds = Field(default_factory=dict)
    """before this record [s]"""


class ReadyRecord(_Line):
    """What the start took besides: engines, learner, first publication. Written with the first step that follows."""

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
    """judgements that failed and got `reward.failureScore`, in all sets"""
    sets: Mapping[str, AccuracyRecord] = Field(default_factory=dict)
    """of each of `data.evaluationSets`, by its name"""


class PerplexityRecord(_Line):
    """How well the learner knows the data's own responses to the held-out questions."""

    kind: Literal["perplexity"] = "perplexity"
    time: float
    step: int
    """0: before the first step"""
    perplexity: float
    """exp of the mean negative log-probability of their tokens"""
    n: int
    """responses"""


class EngineRecord(_Line):
    """An engine failed, and what became of it. Written again when more is known: the last of a failure counts."""

    kind: Literal["engine"] = "engine"
    time: float
    """when the failure was noticed; the same in all records of one failure"""
    step: int
    """steps that were finished"""
    engine: Text
    generation: int
    """which process of that name"""
    cause: Text
    """in a word, for example `ProcessExited`"""
    error: Text
    """what was seen"""
    detect_seconds: float | None = None
    """from the last good sign of life to the detection"""
    reroute_seconds: float | None = None
    """from the detection until the router sent it nothing more"""
    return_seconds: float | None = None
    """from the detection until its successor served the current weights; absent: not yet, or never"""


class SampleRecord(_Line):
    question: Text
    response: Text
    label: Text
    reward: float | None
    parts: Mapping[str, float] = Field(default_factory=dict)
    """what each of several rewards says, before its weight"""
    version: int
    """version of the weights that made the response"""


class FindingRecord(_Line):
    """Something has begun to hold that should not, see `watch.py`."""

    kind: Literal["finding"] = "finding"
    time: float
    step: int
    name: Text
    """in a word, `RewardCollapse`"""
    evidence: Text
    advice: Text


class CheckRecord(_Line):
    """One number of the first step."""

    name: Text
    value: float | None
    """None: it was not finite"""
    limit: float
    """healthy runs are at or below"""
    means: Text
    """what a value above the limit means"""

    @property
    def breached(self) -> bool:
        return self.value is None or self.value > self.limit

    @property
    def told(self) -> str:
        """For example `truncated responses, share: 0.75, most often at most 0.5`."""
        value = "not finite" if self.value is None else f"{self.value:.3g}"
        return f"{self.name}: {value}, most often at most {self.limit:g}"


class SegmentRecord(_Line):
    """A stretch of a response that one author wrote."""

    text: Text
    by_model: bool


class RenderedRecord(_Line):
    prompt: Text
    """as the engine got it, with all markers"""
    response: Text
    finish_reason: Text
    reward: float | None
    segments: tuple[SegmentRecord, ...] = ()
    """who wrote what of it, with all markers; empty: the model wrote it all"""


class FirstStepRecord(_Line):
    """What the first step showed, see `first_step.py`."""

    kind: Literal["first_step"] = "first_step"
    time: float
    step: Literal[1] = 1
    checkpoint: Text
    """that training began with, as the manifest names it"""
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


class EndRecord(_Line):
    kind: Literal["end"] = "end"
    time: float
    step: int
    outcome: Text
    """in a word: `finished`, `stopped` (drained: may go on), `failed`"""
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
        "end",
    }
)
SETUP = frozenset({"start", "load"})
"""phases that belong to a start of the driver and to no step"""


class Sink(Protocol):
    """A place that records go to. Called by one thread at a time."""

    def record(self, record: Record) -> None: ...

    def close(self) -> None:
        """Leave everything received so far where readers find it."""


def rate(tokens: int, seconds: float) -> float | None:
    """Return tokens per second; None where there are no tokens or no time."""
    return tokens / seconds if tokens > 0 and seconds > 0 else None
