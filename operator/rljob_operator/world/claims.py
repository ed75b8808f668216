"""A condition of a job without its times, and the reasons that conditions give. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rljob_api.status import ConditionType


class Reason(StrEnum):
    """Why a condition has its status.

    The reasons of Failed also come from `rljob_api.exits`. Those of Sound are the names of the findings, joined by
    commas.
    """

    VALID = "Valid"
    BAD_MANIFEST = "BadManifest"
    NO_IMAGE = "NoImage"
    NOT_SHARED = "CheckpointsNotShared"
    REFUSED_NOW = "RefusedNow"
    NOT_ADMITTED = "NotAdmitted"
    DIRECTORY_IN_USE = "DirectoryInUse"
    NO_KUEUE = "NoKueue"
    PREVIOUS_CLUSTER = "PreviousClusterLeaves"
    PROVISIONING = "Provisioning"
    PODS_READY = "PodsReady"
    CLUSTER_NOT_READY = "ClusterNotReady"
    BACK_OFF = "BackOff"
    STARTING = "Starting"
    RUNNING = "Running"
    ENDING = "Ending"
    DRAINING = "Draining"
    EVICTED = "Evicted"
    UNREACHABLE = "Unreachable"
    SUSPENDED = "Suspended"
    SUSPENDED_BY_HAND = "RayClusterSuspended"
    QUEUED = "Queued"
    PREEMPTED = "Preempted"
    NEVER_FITS = "NeverFits"
    RESERVED = "Reserved"
    COMPLETED = "Completed"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    FINISHED = "Finished"
    ALL_HEALTHY = "AllHealthy"
    ENGINE_DOWN = "EngineDown"
    SCALING = "Scaling"
    NOT_TRAINING = "NotTraining"
    RESTARTED = "Restarted"
    GRACE_TOO_SHORT = "GracePeriodTooShort"
    AS_EXPECTED = "AsExpected"
    NOTHING_FOUND = "NothingFound"
    IN_PROGRESS = "InProgress"
    OPERATOR_ERROR = "OperatorError"


@dataclass(frozen=True, slots=True)
class Claim:
    """One condition, without times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


Claims = Mapping[ConditionType, Claim]
