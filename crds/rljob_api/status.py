"""The `status` of an RLJob, which the operator writes, as frozen models; the CRD's status is generated from them.

The operator alone writes it. Facts that a driver reports come through `control.py`; here they are cut down to what a
person, `kubectl wait`, an autoscaler or Argo CD can use, and times are RFC 3339 as everywhere in Kubernetes.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from rljob_api.control import MOST_CURVE_POINTS, CurvePoint, EngineState, Goodput, TokenRates
from rljob_api.exits import Cause
from rljob_api.sections import MOST_EVALUATION_SETS, NotNegative, Section, keyed

UNSEEN = -1
"""generation that no operator has seen. Objects begin with it: kstatus takes one without any status for done"""
MOST_CONDITIONS = 32
MOST_ATTEMPTS = 100
"""more than both budgets of restarts together: the recovery policy counts these"""
MOST_STEPS_OF_RECOVERY = 50
MOST_ENGINES = 256
"""beyond them the counters continue, and the oldest or last entries are left out: a status stays small"""


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
    """One statement about the job, in the form of metav1.Condition."""

    type: ConditionType
    """type of the condition; `Ready` and `Stalled` follow the conventions of kstatus and Argo CD"""
    status: Literal["True", "False", "Unknown"]
    """status of the condition"""
    observed_generation: NotNegative | None = None
    """metadata.generation of the evaluated spec"""
    last_transition_time: datetime
    """time of the last change of `status`"""
    reason: Annotated[str, Field(max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """reason in one CamelCase word, for programs; for `Sound` the names of all findings, with commas"""
    message: Annotated[str, Field(max_length=32768)]
    """reason in a sentence, for people"""


class StepSeconds(Section):
    """Duration of a step by phase."""

    total: float
    """whole step, from the end of the previous one [s]"""
    rollout: float | None = None
    """rollout [s]"""
    train: float | None = None
    """training, including the optimizer steps [s]"""
    publish: float | None = None
    """publication of the new weights to the engines [s]"""


MOST_LOSSES = 20
"""causes"""
MOST_NODES = 64
"""of an attempt; beyond them those that failed stay"""
MOST_PARTS = 20
"""parts of the wall clock"""


class JobProgress(Section):
    """Progress of the training; written at most every few seconds."""

    step: NotNegative
    """steps done, of spec.training.steps"""
    reward: float | None = None
    """mean reward of the last step, rounded to four digits"""
    accuracy: float | None = None
    """newest sampled accuracy on spec.data.heldOut, rounded to four digits"""
    perplexity: float | None = None
    """with `sft`: perplexity of the responses in the last step, rounded to four digits"""
    held_out_perplexity: float | None = None
    """with `sft`: newest perplexity of the responses to spec.data.heldOut, rounded to four digits"""
    evaluation_sets: Annotated[dict[str, float], Field(max_length=MOST_EVALUATION_SETS)] | None = None
    """newest sampled accuracy on each of spec.data.evaluationSets, rounded to four digits"""
    tokens_per_second: TokenRates | None = None
    """throughput in the last step [tokens/s]"""
    step_seconds: StepSeconds | None = None
    """duration of the last step by phase, rounded to milliseconds [s]"""
    weight_version: NotNegative | None = None
    """weights version of the healthy engines"""
    eta_seconds: NotNegative | None = None
    """estimated time to the end [s]"""
    goodput: Goodput | None = None
    """wall clock of the run; absent: no step is finished"""
    losses: Annotated[dict[str, NotNegative], Field(max_length=MOST_LOSSES)] | None = None
    """samples and file operations that were lost, by cause, for example `Judge`"""
    waits_for: str | None = None
    """judge, function, pod for tools or volume that the run waits for"""


class JobEngine(Section):
    """One SGLang server."""

    name: str
    """for example `engine-0`"""
    state: EngineState
    """Stale: serves once it has the current weights; Suspect: probes fail, it serves; Leaving: gets no new requests"""
    since: datetime
    """start of this state"""
    version: NotNegative | None = None
    """verified version of its weights"""
    restarts: NotNegative = 0
    """restarts since the start of the run"""
    last_error: str | None = None
    """cause of its last failure"""


class JobEngines(Section):
    """Summary of the engines, and each engine. The scale subresource uses `replicas` and `selector`."""

    desired: NotNegative = 0
    """desired number of engines"""
    replicas: NotNegative = 0
    """number of engines without those that leave, also of engines that start or restart"""
    ready: NotNegative = 0
    """number of engines that serve the current weights"""
    selector: str | None = None
    """label selector of the pods with engines, for `kubectl scale` and autoscalers"""
    items: Annotated[tuple[JobEngine, ...], Field(max_length=MOST_ENGINES, json_schema_extra=keyed("name"))] = ()
    """the first 256 engines, by name"""


class LastCheckpoint(Section):
    """The checkpoint that a restart would resume from."""

    step: NotNegative
    """number of steps done at the save"""
    path: str
    """its directory in the pods"""
    verified: bool
    """whether it was read back and is intact"""
    time: datetime
    """time of its report"""


class AttemptFailure(Section):
    """The failure of the catalogue that ended an attempt, as its logs and pods show it."""

    code: Annotated[str, Field(max_length=64)]
    """name of the failure; docs/troubleshooting.md explains each"""
    title: Annotated[str, Field(max_length=500)]
    """what one sees"""
    remedy: Annotated[str, Field(max_length=500)]
    """what helps most"""
    evidence: Annotated[str, Field(max_length=500)]
    """the line that shows it, after the name of its log"""


class NodeFate(StrEnum):
    """What became of the pods of an attempt on a node."""

    USED = "Used"
    AVOIDED = "Avoided"
    """it had failed earlier attempts, and got no pod"""
    UNREACHABLE = "Unreachable"
    """its kubelet was silent, or did not end a pod in time"""
    EVICTED = "Evicted"
    """it was drained or shut down, or lacked memory or disk"""
    DELETED = "Deleted"
    """it was deleted, or declared out of service"""
    POD_LOST = "PodLost"
    """a pod with the driver or with ranks was deleted, and no node controller says why"""


class AttemptStatus(Section):
    """One start of the driver."""

    number: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """number of the attempt, from 1"""
    cluster: str
    """name of its RayCluster"""
    resume: NotNegative = 0
    """value of spec.recovery.resumes at its start"""
    asked: datetime | None = None
    """time since which the job wanted it; absent: since the last one's end"""
    start_after: datetime
    """earliest time of its submission; restarts back off"""
    started: datetime | None = None
    """time at which the driver was first seen running"""
    verdict: int | None = None
    """exit code with which the operator stops it; absent: the operator does not stop it"""
    ended: datetime | None = None
    """end time; absent: it is running"""
    exit_code: int | None = None
    """exit code of `rljob`; negative: the signal that killed it"""
    reason: str | None = None
    """reason of its end, in a sentence"""
    checkpoint_step: NotNegative | None = None
    """step of the newest checkpoint at its end"""
    step: NotNegative | None = None
    """steps done at its end"""
    cause: Cause | None = None
    """kind of its end: recovery.driverRestarts limits Application, infrastructureRestarts limits Infrastructure"""
    failure: AttemptFailure | None = None
    """the known failure that ended it; absent: it ended in order, or none was recognised"""
    ending_since: datetime | None = None
    """time of the operator's order to save and end, or to stop; absent: it gave none"""
    nodes: Annotated[dict[str, NodeFate], Field(max_length=MOST_NODES)] | None = None
    """by node: how it fared"""


Action = Literal[
    "RestartEngine",
    "RestartRouter",
    "ReplacePod",
    "RestartDriver",
    "ReplaceCluster",
    "AvoidNodes",
    "DeleteCluster",
    "GiveUp",
]
"""what is done about a failure"""


class RecoveryStep(Section):
    """One recovery action."""

    time: datetime
    """time of the decision"""
    action: Action
    """the action"""
    target: str
    """its target: an engine, attempt, pod or cluster"""
    cause: str
    """observed cause"""
    seconds: float | None = None
    """time from the failure to full recovery [s]; absent: not recovered yet"""


class Queue(Section):
    """The job's place in the queue of the operator."""

    position: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """position among the jobs that wait, from 1; absent: it does not wait"""
    since: datetime
    """start of its wait, or of its reservation"""
    first_since: datetime | None = None
    """time since which it is the first that lacks this room"""
    preempted_for: str | None = None
    """job of a higher priority for which it saves and ends; absent: it was not preempted"""
    engines: NotNegative | None = None
    """number of engines that its reservation has room for; absent: it holds none"""
    granted: str | None = None
    """digest of what the pods request that its reservation is for; absent: it holds none"""
    revoked: NotNegative | None = None
    """reservations that it gave back since it ran last, because its pods did not get nodes"""
    retry_at: datetime | None = None
    """time until which it gets no pods for which there are no nodes"""


class ToolPodOwner(StrEnum):
    """Kind of the objects that make the pods for tools; absent: StatefulSet, or there are no such pods."""

    STATEFUL_SET = "StatefulSet"
    SANDBOX = "Sandbox"
    """of agent-sandbox: one for each pod"""


class DefaultVolume(Section):
    """The operator's volume, which the pods of a job mount."""

    source: dict[str, Any]
    """volume source, as in a pod's `spec.volumes` without the name"""
    path: str
    """mount path of the whole volume"""
    sub_path: str | None = None
    """directory of the volume that the pods mount, below the mount path; absent: they mount all of it"""


class Resolved(Section):
    """What a job uses of the operator's defaults; from the first attempt on it stays, even if the chart changes."""

    image: str | None = None
    """container image of all pods: spec.runtime.image, or the operator's default"""
    directory: str | None = None
    """run directory in the pods: spec.checkpoint.directory, or one in the operator's volume"""
    volume: DefaultVolume | None = None
    """the operator's volume; absent: the job has its own"""
    directory_image: str | None = None
    """image of the init containers that make the run directory in that volume; no job chooses it"""
    head_resources: dict[str, Any] | None = None
    """resources of the head's container"""
    worker_resources: dict[str, Any] | None = None
    """resources of the other pods' containers, without GPUs"""
    defaults: dict[str, Any] | None = None
    """the operator's settings for the pods of all jobs, in the form of a spec"""
    tool_pod_owner: ToolPodOwner | None = None
    """kind of the objects that make the pods for tools; absent: StatefulSet, or there are no such pods"""


class Status(Section):
    """The observed state of an RLJob."""

    observed_generation: Annotated[int, Field(ge=UNSEEN, le=2**31 - 1)] | None = None
    """metadata.generation that the status describes; -1: no operator has seen the job yet"""
    phase: Phase | None = None
    """summary in one word: Invalid, Queued, Provisioning, Starting, Training, Recovering, Suspending,
    Suspended, Succeeded, Failed"""
    phase_since: datetime | None = None
    """start of this phase"""
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=MOST_CONDITIONS, json_schema_extra=keyed("type"))
    ] = ()
    """conditions of the job; for example `kubectl wait --for=condition=Succeeded`"""
    attempt: NotNegative = 0
    """number of the current attempt of the driver; above 0 most fields of the spec cannot change"""
    restarts: NotNegative = 0
    """number of attempts that followed a failure, a lost pod or a preemption"""
    gpus: NotNegative | None = None
    """total number of GPUs of the spec (on Cpu: processes)"""
    start_time: datetime | None = None
    """start of the first attempt"""
    completion_time: datetime | None = None
    """time at which the job succeeded or failed"""
    progress: JobProgress | None = None
    """progress of the training"""
    curve: Annotated[tuple[CurvePoint, ...], Field(max_length=MOST_CURVE_POINTS)] = ()
    """the whole run in at most 64 points, oldest first; `rljob plot` draws it, also after the pods are deleted"""
    engines: JobEngines | None = None
    """summary of the engines, and each engine"""
    directory: str | None = None
    """run directory in the pods: checkpoints, logs, events.jsonl"""
    began: str | None = None
    """where the newest attempt began: its checkpoint; absent: at step 0 in an empty directory"""
    release: str | None = None
    """NAMESPACE/LEASE of the operator that acts on the job; another one leaves it alone until that Lease has not been
    renewed for 15 min"""
    queue: Queue | None = None
    """place in the queue of the operator; absent: it is in none. The condition QuotaReserved has the reason"""
    resolved: Resolved | None = None
    """what the job uses of the operator's defaults"""
    last_checkpoint: LastCheckpoint | None = None
    """the checkpoint that a restart would resume from"""
    attempts: Annotated[
        tuple[AttemptStatus, ...], Field(max_length=MOST_ATTEMPTS, json_schema_extra=keyed("number"))
    ] = ()
    """the newest 100 attempts of the driver, oldest first"""
    recovery: Annotated[tuple[RecoveryStep, ...], Field(max_length=MOST_STEPS_OF_RECOVERY)] = ()
    """the newest 50 recovery actions, oldest first"""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of this type; None: the job has none."""
        return next((each for each in self.conditions if each.type is kind), None)

    def is_true(self, kind: ConditionType) -> bool:
        """Return whether the condition of this type has the status True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"
