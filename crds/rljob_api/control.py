"""The control protocol between a training driver and its supervisor: the operator or `rljob run`.

HTTP on the driver, JSON bodies, `Authorization: Bearer TOKEN` on every request. Orders are desired state with a
generation, so giving one twice is harmless. Times are unix seconds of the driver's clock.

    GET  /v1/status?since=REVISION&wait=SECONDS   Status; with `since`, once the revision differs or `wait` is over
    GET  /v1/metrics                              Prometheus text
    PUT  /v1/engines/{name}                       EngineOrder -> OrderResult
    PUT  /v1/scale                                Scale -> OrderResult
    POST /v1/drain                                finish the current step, save and end -> OrderResult
    POST /v1/evict                                a pod of the run is about to end: Eviction -> EvictionResult

`/v1/evict` also accepts the eviction token, which permits nothing else: all pods of a job have it.

A refused request is answered with a Refusal.
"""

import hashlib
import hmac
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

STATUS = "/v1/status"
METRICS = "/v1/metrics"
ENGINE = "/v1/engines/{name}"
SCALE = "/v1/scale"
DRAIN = "/v1/drain"
EVICT = "/v1/evict"

TOKEN_VARIABLE = "RLJOB_TOKEN"
"""environment variable of the driver that holds the bearer token"""
EVICTION_TOKEN_VARIABLE = "RLJOB_EVICTION_TOKEN"
"""environment variable of every pod that holds the eviction token"""

RAY_ADDRESS = "RAY_ADDRESS"
"""environment variable of a driver that Ray has started: there is a Ray cluster, and perhaps more than one machine"""

ADDRESS_FILE = "control.json"
"""in the run's directory: `{"url": ..., "pid": ...}` of the driver that listens"""

DRIVER_LOG = "logs/driver-attempt-{attempt}.log"
STACKS_LOG = "logs/stacks-attempt-{attempt}.log"
ENGINE_LOG = "logs/{engine}.log"
REWARD_LOG = "logs/reward.log"
"""in the run's directory: what each start of the driver, each engine, and functions that judge have written, and the
stacks of a driver and its ranks that made no progress"""
CORES = "cores"
"""folder in the run's directory: core dumps of GPUs"""

MOST_CURVE_POINTS = 64
"""of a run of any length: the curve has to fit into an object of the API server"""

LONGEST_WAIT_S = 30.0
"""the driver answers a long-poll after this time at the latest [s]"""

NOT_NEGATIVE = Field(ge=0, le=2**31 - 1)
"""of a count; the status of an RLJob takes no larger one"""


EFFECTIVE = ("rollout", "reward", "advantage", "train", "publish", "evaluate", "report", "other")
"""phases that advance the training"""
OF_EACH_STEP = ("rollout", "reward", "advantage", "train", "report")
"""phases that every step has, without the publication, which `weightSync.timeoutSeconds` bounds"""
RECOVERY = "recovery"
"""part of the time of a driver: from the last record of an attempt to the start of the next one"""
SUSPENDED = "suspended"
"""part of the time of an RLJob, in which it was to have no pods; no other share counts it"""
NAMED_SHARE = 0.005
"""of the wall clock; smaller losses are not in the sentence"""


class Message(BaseModel):
    """A part of the protocol: frozen, camelCase outside, snake_case inside.

    Unknown fields are left out: the other side may be of a newer version.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class RunState(StrEnum):
    """What the driver as a whole is doing. A state of a newer version reads as Running."""

    STARTING = "Starting"
    RUNNING = "Running"
    DRAINING = "Draining"
    FINISHED = "Finished"
    FAILED = "Failed"

    @classmethod
    def _missing_(cls, value: object) -> "RunState | None":
        return cls.RUNNING if isinstance(value, str) else None


class EngineState(StrEnum):
    """Where an engine is. There is no way from Dead or Starting to Healthy but through Stale, and none from Leaving.

    A state of a newer version reads as Unknown: nothing is done about such an engine.
    """

    STARTING = "Starting"
    STALE = "Stale"
    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    DEAD = "Dead"
    LEAVING = "Leaving"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "EngineState | None":
        return cls.UNKNOWN if isinstance(value, str) else None


class EngineStatus(Message):
    """One engine, as the driver sees it."""

    name: Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)]
    """for example `engine-0`"""
    state: EngineState
    """Stale: serves nothing until it holds the current weights; Suspect: probes fail, requests still go to it; Leaving:
    gets no more requests, and is gone when the last ones are answered"""
    since: float
    """when it came into this state [unix s]"""
    generation: Annotated[int, NOT_NEGATIVE] = 0
    """counts the processes that have carried this name; the first is 0"""
    version: Annotated[int, NOT_NEGATIVE] | None = None
    """version of the weights that it holds, verified; absent: none that we published"""
    restarts: Annotated[int, NOT_NEGATIVE] = 0
    """restarts in this attempt of the driver"""
    last_error: str | None = None
    """why it died last"""
    url: str | None = None
    """where it serves; absent while there is no process"""
    pid: int | None = None
    """its process on its machine"""
    node: str | None = None
    """address of its machine or pod; absent while it waits for room"""


class Scale(Message):
    """How many engines there shall be."""

    generation: Annotated[int, NOT_NEGATIVE]
    """grows with every order, and orders of an older one are refused; 0: as the driver began"""
    engines: Annotated[int, Field(ge=1)]


class AccuracyPoint(Message):
    """One evaluation on the held-out questions."""

    step: Annotated[int, NOT_NEGATIVE]
    """steps done when it was measured"""
    accuracy: float
    """mean reward; the share of right answers where rewards are 0 or 1"""


class PerplexityPoint(Message):
    """One look at the data's own responses to the held-out questions, where those are learned."""

    step: Annotated[int, NOT_NEGATIVE]
    """steps done when it was measured"""
    perplexity: float
    """of the responses' tokens, by the learner"""


class SetAccuracy(Message):
    """The newest evaluation on one of `data.evaluationSets`."""

    step: Annotated[int, NOT_NEGATIVE]
    """steps done when it was measured"""
    sampled: float
    """mean reward with sampling"""
    greedy: float | None = None
    """mean reward without sampling; absent: not measured"""


class TokenRates(Message):
    """Speeds in the last step."""

    rollout: float | None = None
    """generated by all engines together [tokens/s]"""
    train: float | None = None
    """through the learner [tokens/s]"""


class CurvePoint(Message):
    """The run at one step, for a picture of it."""

    step: Annotated[int, NOT_NEGATIVE]
    """steps done"""
    reward: float | None = None
    """mean reward of the step, rounded to four digits"""
    accuracy: float | None = None
    """accuracy on the held-out questions with sampling, where it was measured, rounded to four digits"""
    tokens_per_second: float | None = None
    """generated by all engines together, rounded [tokens/s]"""
    perplexity: float | None = None
    """of the responses that the step has learned, where they are the data's own, rounded to four digits"""
    held_out_perplexity: float | None = None
    """of the data's own responses to the held-out questions, where it was measured, rounded to four digits"""


class Goodput(Message):
    """Where the wall clock of a run went, over all starts of its driver.

    `redone` are steps that a resume repeated, `recovery` is the time from the last record of an attempt to the start of
    the next one.
    """

    wall_seconds: float
    """until the newest step, or the end; of a driver from its first start, of an RLJob from its creation [s]"""
    effective_share: float
    """share of that time, without suspensions, in steps that count (ETTR)"""
    seconds: dict[str, float]
    """that time by part: phases, `redone` steps and `recovery`; of an RLJob docs/recovery.md lists them [s]"""
    lost_gpu_seconds: float
    """GPU-seconds in no step that counts, those of lost engines included"""

    def __str__(self) -> str:
        """For example `93.1% of 2.5 h in steps that count; load 4%, recovery 2%; 0.6 GPU-hours lost`."""
        wall_s = self.wall_seconds - self.seconds.get(SUSPENDED, 0.0)
        losses = [
            f"{part} {seconds / wall_s:.0%}"
            for part, seconds in self.seconds.items()
            if part not in (*EFFECTIVE, SUSPENDED) and seconds >= NAMED_SHARE * wall_s
        ]
        parts = [
            f"{self.effective_share:.1%} of {_hours(wall_s)} in steps that count",
            *([", ".join(losses)] if losses else []),
            f"{self.lost_gpu_seconds / 3600:.3g} GPU-hours lost",
        ]
        return "; ".join(parts)


def _hours(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Progress(Message):
    """How far the training is."""

    step: Annotated[int, NOT_NEGATIVE] = 0
    """steps done"""
    steps: Annotated[int, NOT_NEGATIVE] = 0
    """steps that the manifest asks for"""
    reward_mean: float | None = None
    """mean reward of the last step"""
    rewards: tuple[float, ...] = ()
    """mean rewards of the last 60 steps, oldest first"""
    accuracy_sampled: tuple[AccuracyPoint, ...] = ()
    """held-out accuracy with sampling, oldest first"""
    accuracy_greedy: tuple[AccuracyPoint, ...] = ()
    """held-out accuracy without sampling, oldest first"""
    perplexities: tuple[float, ...] = ()
    """perplexities of what the last 60 steps have learned, oldest first, where responses are the data's own"""
    held_out_perplexity: tuple[PerplexityPoint, ...] = ()
    """perplexity of the data's own responses to the held-out questions, where those are learned, oldest first"""
    evaluation_sets: dict[str, SetAccuracy] = Field(default_factory=dict)
    """newest accuracy on each of `data.evaluationSets`, by its name"""
    curve: tuple[CurvePoint, ...] = ()
    """the whole run since its first attempt in at most 64 points, oldest first; the first and the newest are in it"""
    tokens_per_second: TokenRates = TokenRates()
    weight_version: Annotated[int, NOT_NEGATIVE] | None = None
    """version of the weights that the healthy engines hold"""
    eta_seconds: float | None = None
    """expected time from the end of the newest step until that of the last one [s]"""
    last_step_seconds: dict[str, float] = Field(default_factory=dict)
    """duration of each phase of the last step [s]"""
    goodput: Goodput | None = None
    """None: no step is finished"""
    losses: dict[str, int] = Field(default_factory=dict)
    """what the whole run has lost to the world around it, by cause: samples (`Agent`, `AgentTimeout`, `Generate`,
    `Refused`, `Judge`, `Group`), and operations on files that were repeated (`Storage`) or left for later
    (`Cleaning`)"""


class SavedCheckpoint(Message):
    """The newest checkpoint."""

    step: Annotated[int, NOT_NEGATIVE]
    """steps done when it was saved"""
    path: str
    """its directory"""
    verified: bool
    """whether it was read back after writing and is as it was written"""


ROUTER = "router"
"""stands for the name of an engine where the router has failed"""


class Incident(Message):
    """An engine, or the router, that failed, and what became of it. A witness that a fault really happened."""

    time: float
    """when the failure was noticed [unix s]"""
    engine: str
    """name of the engine, or `router`"""
    generation: Annotated[int, NOT_NEGATIVE]
    """which process of that name"""
    error: str
    """what was seen"""
    detect_seconds: float | None = None
    """from the last good sign of life to the detection [s]"""
    reroute_seconds: float | None = None
    """from the detection until the router sent it nothing more [s]"""
    return_seconds: float | None = None
    """from the detection until its successor served the current weights [s]; absent: not yet"""


class DecidedBy(StrEnum):
    SUPERVISOR = "Supervisor"
    DRIVER = "Driver"

    @classmethod
    def _missing_(cls, value: object) -> "DecidedBy | None":
        return cls.SUPERVISOR if isinstance(value, str) else None


class Decision(Message):
    """An order to restart an engine that the driver has accepted. The recovery policy reads these as its history."""

    time: float
    """when it was accepted [unix s]"""
    step: Annotated[int, NOT_NEGATIVE]
    """steps done at that time"""
    engine: str
    """name of the engine"""
    generation: Annotated[int, NOT_NEGATIVE]
    """generation that was ordered"""
    by: DecidedBy
    """the supervisor (operator or `rljob run`), or the driver itself while no supervisor reads its status"""
    reason: str
    """why"""


class Finding(Message):
    """An anomaly that `spec.watch` has found."""

    name: Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9]*$", max_length=64)]
    """for example `RewardCollapse`"""
    evidence: str
    """the measured numbers, and the limit with its field"""
    advice: str
    """where to look first"""


class Status(Message):
    """The status of a driver."""

    revision: Annotated[int, NOT_NEGATIVE] = 0
    """grows with every change but heartbeats; starts again with each attempt"""
    attempt: Annotated[int, Field(ge=1)] = 1
    """which start of the driver this is"""
    state: RunState = RunState.STARTING
    phase: str = "start"
    """what the main thread does, for example `rollout`"""
    phase_since: float = 0.0
    """when the phase began [unix s]"""
    save_seconds: float | None = None
    """duration of the longest save of this attempt [s]; absent: nothing was saved"""
    longest_phase_seconds: Annotated[float, Field(ge=0)] = 0.0
    """duration of the longest phase of this attempt that has ended [s]; measures what counts as stalled"""
    longest_step_phase_seconds: Annotated[float, Field(ge=0)] = 0.0
    """of the longest one of OF_EACH_STEP [s]; 0: none, or an older driver"""
    heartbeat: float = 0.0
    """last sign of life of the main thread [unix s]"""
    progress: Progress = Progress()
    engines: tuple[EngineStatus, ...] = ()
    scale: Scale | None = None
    """what the driver works towards; absent: it starts, or the number of engines does not change"""
    checkpoint: SavedCheckpoint | None = None
    incidents: tuple[Incident, ...] = ()
    """failures of engines and of the router in this attempt, the newest 100, oldest first"""
    decisions: tuple[Decision, ...] = ()
    """accepted orders in this attempt, the newest 200, oldest first"""
    findings: tuple[Finding, ...] = ()
    """problems with the training at present"""
    began: str | None = None
    """where this attempt began, in words: its checkpoint, and what happened to others; absent: at step 0 in an empty
    directory"""
    result: str | None = None
    """the result in a sentence; set when the run has finished"""
    exit_reason: str | None = None
    """why the driver ends, in words; set just before it does"""
    stacks: str | None = None
    """while the main thread makes no progress: where the driver and each rank stand, and the file with their stacks"""
    waits_for: str | None = None
    """what the driver waits for outside the run, in words: a judge, a pod for tools, a volume; absent: nothing"""
    waited_seconds: Annotated[float, NOT_NEGATIVE] = 0.0
    """how long this attempt has waited for such things so far [s]"""
    eviction: str | None = None
    """why the driver saves and ends, if a pod is being evicted: names the pod"""


class EngineOrder(Message):
    """Desired state of an engine."""

    generation: Annotated[int, NOT_NEGATIVE]
    """the generation that shall run: the present one plus one; an order for the present or an older one is done"""
    desired: Literal["Running"]
    """replace the process if the engine is Dead"""
    reason: str = ""
    """why, in words; recorded with the decision"""


class Eviction(Message):
    """A pod of the run is about to end."""

    pod: str
    """its name"""
    node: str = ""
    """its address, as in the status of engines"""
    holds: Literal["Learner", "Engines"]
    """`Learner`: the driver or ranks of the learner; `Engines`: engines at most"""


class EvictionResult(Message):
    """Whether the run ends because of an eviction."""

    outcome: Literal["Draining", "Unneeded"]
    """`Draining`: the driver saves and ends, the pod should stay until then; `Unneeded`: the run continues without the
    pod"""
    stalled: bool = False
    """whether the driver makes no progress, so that waiting is useless"""


class OrderResult(Message):
    """Whether the driver accepted an order."""

    outcome: Literal["Accepted", "Unchanged"]
    """`Unchanged`: already done or in progress"""


class Refusal(Message):
    """Why a request was refused."""

    field: str
    """the field, parameter, header or path at fault"""
    value: str
    """what was sent; empty if it may be a secret"""
    rule: str
    """what is allowed"""


def eviction_token(token: str) -> str:
    """Return the token that permits only to report evictions, derived from the token of the control protocol."""
    return hmac.new(token.encode(), b"evict", hashlib.sha256).hexdigest()


def eviction_token_of(environ: Mapping[str, str]) -> str | None:
    """Return the eviction token of a pod with this environment; None: it has none."""
    if TOKEN_VARIABLE in environ:
        return eviction_token(environ[TOKEN_VARIABLE])
    return environ.get(EVICTION_TOKEN_VARIABLE)


def kernels_key(environ: Mapping[str, str]) -> bytes | None:
    """Return the key of the compiled kernels that the pods of a job keep for each other; None: there is none.

    Every pod of the job derives the same one, in every attempt with the same control token.
    """
    token = eviction_token_of(environ)
    return hmac.digest(token.encode(), b"kernels", "sha256") if token else None


def ray_token(token: str) -> str:
    """Return the token of Ray's own authentication in the job's pods, derived from that of the control protocol."""
    return hmac.new(token.encode(), b"ray", hashlib.sha256).hexdigest()
