"""What the operator writes into an RLJob's `status`, as frozen models; the CRD's status is made from them.

The operator alone writes it. Facts that a driver reports come through `control.py`; here they are cut down to what a
person, `kubectl wait`, an autoscaler or Argo CD can use, and times are RFC 3339 as everywhere in Kubernetes.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from rljob_api.control import MOST_CURVE_POINTS, CurvePoint, EngineState, TokenRates
from rljob_api.sections import MOST_EVALUATION_SETS, NotNegative, Section, keyed

UNSEEN = -1
"""generation that no operator has seen. Objects begin with it: kstatus takes one without any status for done"""
MOST_ATTEMPTS = 50
MOST_STEPS_OF_RECOVERY = 50
MOST_ENGINES = 256
"""beyond them the counters go on, and the oldest or last entries are left out: a status stays small"""


class Phase(StrEnum):
    """One word for people; programs read the conditions."""

    INVALID = "Invalid"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    TRAINING = "Training"
    RECOVERING = "Recovering"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The claims that are true, false or unknown of a job."""

    ADMITTED = "Admitted"
    QUOTA_RESERVED = "QuotaReserved"
    CLUSTER_READY = "ClusterReady"
    ENGINES_READY = "EnginesReady"
    TRAINING = "Training"
    DEGRADED = "Degraded"
    SOUND = "Sound"
    STALLED = "Stalled"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    READY = "Ready"
    RECONCILING = "Reconciling"


class Condition(Section):
    """One claim about the job, in the form of metav1.Condition."""

    type: ConditionType
    """what is claimed; `Ready` and `Stalled` mean what kstatus and Argo CD expect"""
    status: Literal["True", "False", "Unknown"]
    """whether it holds"""
    observed_generation: NotNegative | None = None
    """metadata.generation of the spec that this was judged by"""
    last_transition_time: datetime
    """when `status` changed last"""
    reason: Annotated[str, Field(max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """why, in one CamelCase word that programs may compare; of `Sound` the names of all that was found, with commas"""
    message: Annotated[str, Field(max_length=32768)]
    """why, in words for people"""


class StepSeconds(Section):
    """Where the time of a step went."""

    total: float
    """from the end of the step before [s]"""
    rollout: float | None = None
    """the engines generated [s]"""
    train: float | None = None
    """the learner computed and took its optimizer steps [s]"""
    publish: float | None = None
    """the engines got the new weights [s]"""


class Progress(Section):
    """How far the training is; written at most every few seconds."""

    step: NotNegative
    """steps done, of spec.training.steps"""
    reward: float | None = None
    """mean reward of the last step, rounded to four digits"""
    accuracy: float | None = None
    """newest accuracy on spec.data.heldOut, with sampling, rounded to four digits"""
    perplexity: float | None = None
    """with `sft`: perplexity of the responses that the last step has learned, rounded to four digits"""
    held_out_perplexity: float | None = None
    """with `sft`: newest perplexity of the responses to spec.data.heldOut, rounded to four digits"""
    evaluation_sets: Annotated[dict[str, float], Field(max_length=MOST_EVALUATION_SETS)] | None = None
    """newest accuracy on each of spec.data.evaluationSets, with sampling, rounded to four digits"""
    tokens_per_second: TokenRates | None = None
    """speeds in the last step [tokens/s]"""
    step_seconds: StepSeconds | None = None
    """duration of the last step by phase, rounded to milliseconds [s]"""
    weight_version: NotNegative | None = None
    """version of the weights that the healthy engines hold"""
    eta_seconds: NotNegative | None = None
    """expected time until the last step is done [s]"""


class Engine(Section):
    """One SGLang server."""

    name: str
    """for example `engine-0`"""
    state: EngineState
    """Stale: serves nothing until it holds the current weights; Suspect: probes fail, requests still go to it; Leaving:
    gets no more requests"""
    since: datetime
    """when it came into this state"""
    version: NotNegative | None = None
    """version of the weights that it holds, verified"""
    restarts: NotNegative = 0
    """restarts since the run began"""
    last_error: str | None = None
    """why it died last"""


class Engines(Section):
    """The engines together, and each of them. `ready` and `selector` serve the scale subresource."""

    desired: NotNegative = 0
    """engines that the operator works towards"""
    ready: NotNegative = 0
    """engines that serve the current weights"""
    selector: str | None = None
    """label selector of the pods that hold engines, for `kubectl scale` and autoscalers"""
    items: Annotated[tuple[Engine, ...], Field(max_length=MOST_ENGINES, json_schema_extra=keyed("name"))] = ()
    """each engine by its name, the first 256"""


class LastCheckpoint(Section):
    """The checkpoint that a restart would begin with."""

    step: NotNegative
    """steps done when it was saved"""
    path: str
    """its directory, as the pods see it"""
    verified: bool
    """whether it was read back after writing and is as it was written"""
    time: datetime
    """when it was reported"""


class Attempt(Section):
    """One start of the driver."""

    number: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """counts from 1"""
    cluster: str
    """name of the RayCluster it runs on"""
    start_after: datetime
    """not submitted earlier: a restart backs off"""
    started: datetime | None = None
    """when the driver was first seen running"""
    verdict: int | None = None
    """exit code for which the operator ends it; absent: it does not"""
    ended: datetime | None = None
    """when it ended; absent: it runs"""
    exit_code: int | None = None
    """as `rljob` documents its exit codes; negative: the signal that ended it"""
    reason: str | None = None
    """why it ended, in words"""
    checkpoint_step: NotNegative | None = None
    """step of the newest checkpoint when it ended"""


class RecoveryStep(Section):
    """Something that was done about a failure."""

    time: datetime
    """when it was decided"""
    action: Literal["RestartEngine", "LeaveEngine", "RestartDriver", "ReplacePod", "ReplaceCluster", "GiveUp"]
    """what was done"""
    target: str
    """to what: an engine, an attempt, a pod, a cluster"""
    cause: str
    """what had been seen"""
    seconds: float | None = None
    """from the failure until everything worked again [s]; absent: not yet"""


class Status(Section):
    """The observed state of an RLJob."""

    observed_generation: Annotated[int, Field(ge=UNSEEN, le=2**31 - 1)] | None = None
    """metadata.generation that the rest of the status is about; -1: no operator has seen the job yet"""
    phase: Phase | None = None
    """one word for people: Invalid, Queued, Provisioning, Starting, Training, Recovering, Suspending,
    Suspended, Succeeded, Failed"""
    phase_since: datetime | None = None
    """when it came into this phase"""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32, json_schema_extra=keyed("type"))] = ()
    """claims about the job with reasons; `kubectl wait --for=condition=Succeeded`"""
    attempt: NotNegative = 0
    """number of the present start of the driver; above 0 most of the spec cannot change any more"""
    gpus: NotNegative | None = None
    """GPUs (on Cpu: processes) that the spec takes in all"""
    start_time: datetime | None = None
    """when the first attempt began"""
    completion_time: datetime | None = None
    """when the job succeeded or failed"""
    progress: Progress | None = None
    """how far the training is"""
    curve: Annotated[tuple[CurvePoint, ...], Field(max_length=MOST_CURVE_POINTS)] = ()
    """the whole run in at most 64 points, oldest first; `rljob plot` draws it, also when the pods are gone"""
    engines: Engines | None = None
    """the engines together, and each of them"""
    directory: str | None = None
    """of the run, as the pods see it: checkpoints, logs, events.jsonl"""
    last_checkpoint: LastCheckpoint | None = None
    """the checkpoint that a restart would begin with"""
    attempts: Annotated[tuple[Attempt, ...], Field(max_length=MOST_ATTEMPTS, json_schema_extra=keyed("number"))] = ()
    """the newest 50 starts of the driver, oldest first"""
    recovery: Annotated[tuple[RecoveryStep, ...], Field(max_length=MOST_STEPS_OF_RECOVERY)] = ()
    """the newest 50 things that were done about failures, oldest first"""
