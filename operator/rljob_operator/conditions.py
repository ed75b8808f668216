"""What is true of a job, in the words of its conditions. Pure: from what is there and what is remembered.

A message tells what is so, not what is being done about it: it stays the same while the operator carries a plan out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rljob_api.control import EngineState, EngineStatus, RunState
from rljob_api.exits import Exit
from rljob_api.sections import Spec
from rljob_api.status import ConditionType as Type
from rljob_operator import attempts, desired
from rljob_operator.identity import Manifest
from rljob_operator.memory import Attempt, Memory
from rljob_operator.world import ALIVE, Driver, DriverState, Job, Pod, World


class Reason(StrEnum):
    """Why a condition is as it is. The reasons of Failed come from `rljob_api.exits` besides, those of Sound are
    the names of what was found, joined by commas."""

    VALID = "Valid"
    BAD_MANIFEST = "BadManifest"
    NO_IMAGE = "NoImage"
    NOT_SHARED = "CheckpointsNotShared"
    NOT_ADMITTED = "NotAdmitted"
    PREVIOUS_CLUSTER = "PreviousClusterLeaves"
    PROVISIONING = "Provisioning"
    PODS_READY = "PodsReady"
    CLUSTER_NOT_READY = "ClusterNotReady"
    BACK_OFF = "BackOff"
    STARTING = "Starting"
    RUNNING = "Running"
    ENDING = "Ending"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    FINISHED = "Finished"
    ALL_HEALTHY = "AllHealthy"
    ENGINE_DOWN = "EngineDown"
    SCALING = "Scaling"
    NOT_TRAINING = "NotTraining"
    RESTARTED = "Restarted"
    AS_EXPECTED = "AsExpected"
    NOTHING_FOUND = "NothingFound"
    IN_PROGRESS = "InProgress"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


NO_IMAGE = "spec.runtime.image is absent, and the operator has no default: set it, or trainer.image of the chart"

Conditions = Mapping[Type, Condition]


def refusal(job: Job, world: World) -> Condition | None:
    """Return why a job cannot be admitted; None: it can."""
    if job.spec is None:
        return Condition("False", Reason.BAD_MANIFEST, "; ".join(str(problem) for problem in job.problems))
    if not (job.spec.runtime.image or world.defaults.image):
        return Condition("False", Reason.NO_IMAGE, NO_IMAGE)
    where = desired.directory(job, job.spec, world.defaults)
    if not desired.is_shared(where, job.spec, world.defaults):
        message = (
            f"spec.checkpoint.directory: {where} lies in no volume of spec.runtime.volumeMounts; the driver and the "
            "learners are in different pods, and both need it: mount a volume there that many pods can write to"
        )
        return Condition("False", Reason.NOT_SHARED, message)
    return None


def refused(why: Condition) -> Conditions:
    """Return the conditions of a job that is not admitted."""
    waiting = Condition("False", Reason.NOT_ADMITTED, why.message)
    unknown = Condition("Unknown", Reason.NOT_ADMITTED, "the job has not been admitted")
    return {
        Type.ADMITTED: why,
        Type.CLUSTER_READY: waiting,
        Type.TRAINING: waiting,
        Type.ENGINES_READY: unknown,
        Type.DEGRADED: Condition("False", Reason.NOT_ADMITTED, "nothing runs"),
        Type.SOUND: unknown,
        Type.SUCCEEDED: unknown,
        Type.FAILED: unknown,
        Type.READY: Condition("False", why.reason, why.message),
        Type.RECONCILING: Condition("False", why.reason, "waits for another manifest"),
        Type.STALLED: Condition("True", why.reason, why.message),
    }


def conditions(memory: Memory, job: Job, spec: Spec, world: World, now: float) -> Conditions:
    """Return the conditions of an admitted job with this memory."""
    cluster = cluster_ready(memory, spec, world)
    driver = attempts.driver_of(memory.attempt, job, world) if memory.attempt else None
    running = training(memory, spec, driver, cluster, now)
    return {
        Type.ADMITTED: Condition("True", Reason.VALID, "the manifest is valid"),
        Type.CLUSTER_READY: cluster,
        Type.TRAINING: running,
        Type.ENGINES_READY: engines_ready(driver, running),
        Type.DEGRADED: degraded(memory, driver, running),
        Type.SOUND: sound(driver, running),
        **_ending(memory),
        **_summary(memory, running),
    }


def cluster_ready(memory: Memory, spec: Spec, world: World) -> Condition:
    if memory.outcome is not None:
        return Condition("False", Reason.FINISHED, "the job has ended and its pods are freed")
    attempt = memory.attempt
    if attempt is None or not attempt.is_open:
        return Condition("False", Reason.SUSPENDED, "the job is suspended and has no pods")
    if leaving := others(attempt.cluster, world):
        return Condition("False", Reason.PREVIOUS_CLUSTER, f"{', '.join(leaving)} of an earlier attempt still there")
    wanted, pods = desired.num_pods(spec), world.pods_of(attempt.cluster)
    ready = sum(pod.is_ready for pod in pods)
    if ready >= wanted and any(pod.is_head and pod.is_ready for pod in pods):
        return Condition("True", Reason.PODS_READY, f"{wanted} of {wanted} pods are ready")
    trouble = _trouble(attempt.cluster, pods, world)
    said = f"{ready} of {wanted} pods are ready" + (f"; {trouble}" if trouble else "")
    return Condition("False", Reason.PROVISIONING, said)


def _trouble(cluster: str, pods: Sequence[Pod], world: World) -> str | None:
    """Return the first thing that is known to be in the way: a child that is refused, or a pod that does not start."""
    if world.refused is not None:
        return world.refused
    failure = _failure_of(world.child("RayCluster", cluster))
    if failure is not None:
        return failure
    first = next((pod for pod in sorted(pods, key=lambda pod: pod.name) if pod.trouble and not pod.is_ready), None)
    return f"{first.name}: {first.trouble}" if first else None


def _failure_of(raycluster: Manifest | None) -> str | None:
    """Return why KubeRay cannot make or delete a pod, without the pod's name: it has another one at every try."""
    conditions = raycluster.get("status", {}).get("conditions", []) if raycluster else []
    for condition in conditions:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return re.sub(r'pods "[^"]*" is forbidden', "a pod is forbidden", " ".join(condition["message"].split()))
    return None


def others(cluster: str, world: World) -> tuple[str, ...]:
    """Return RayClusters of the job other than this one, or pods that they have left behind."""
    names = {child["metadata"]["name"] for child in world.rayclusters()}
    pods = {pod.name for pod in world.pods if pod.cluster not in {cluster, *names}}
    return (
        *(f"RayCluster {name}" for name in sorted(names - {cluster})),
        *(f"pod {name}" for name in sorted(pods)),
    )


def training(memory: Memory, spec: Spec, driver: Driver | None, cluster: Condition, now: float) -> Condition:
    if memory.outcome is not None:
        return Condition("False", Reason.FINISHED, memory.outcome.message)
    attempt = memory.attempt
    if attempt is None or not attempt.is_open:
        return Condition("False", Reason.SUSPENDED, "the job is suspended")
    name = f"attempt {attempt.number}"
    if attempt.verdict is not None:
        return Condition("False", Reason.ENDING, f"{name} is ended: {attempt.reason}")
    if attempt.started is None:
        if now < attempt.start_after and memory.attempts[:-1]:
            return Condition("False", Reason.BACK_OFF, f"{name} waits: {memory.attempts[-2].reason}")
        waits = cluster.status != "True" and (driver is None or driver.state not in ALIVE)
        told = (Reason.CLUSTER_NOT_READY, cluster.message) if waits else (Reason.STARTING, f"{name} starts")
        return Condition("False", *told)
    if driver is None or driver.state is DriverState.UNKNOWN:
        return Condition("Unknown", Reason.UNREACHABLE, f"{name}: Ray does not answer the operator")
    if spec.scheduling.suspend:
        return Condition("True", Reason.DRAINING, f"{name} saves and ends")
    if driver.status is None or driver.status.state is RunState.STARTING:
        return Condition("False", Reason.STARTING, f"{name} starts")
    return Condition("True", Reason.RUNNING, f"{name} trains")


def engines_ready(driver: Driver | None, running: Condition) -> Condition:
    if driver is None or driver.status is None or not driver.status.engines or running.status != "True":
        return Condition("Unknown", Reason.NOT_TRAINING, "engines are known while the job trains")
    engines = [engine for engine in driver.status.engines if engine.state is not EngineState.LEAVING]
    healthy = sum(engine.state is EngineState.HEALTHY for engine in engines)
    counted = f"{healthy} of {len(engines)} engines are healthy"
    dead = [engine for engine in engines if engine.state is EngineState.DEAD]
    if healthy == len(engines):
        return Condition("True", Reason.ALL_HEALTHY, counted)
    coming = [engine for engine in engines if _is_coming(engine)]
    if healthy + len(coming) == len(engines):
        waits = "waits for room" if coming[0].node is None else "starts"
        return Condition("False", Reason.SCALING, f"{counted}; {coming[0].name} {waits}")
    why = f"; {dead[0].name}: {dead[0].last_error or 'no error known'}" if dead else ""
    return Condition("False", Reason.ENGINE_DOWN, counted + why)


def _is_coming(engine: EngineStatus) -> bool:
    """Return whether an engine was added and has not served yet."""
    return engine.restarts == 0 and engine.state in (EngineState.STARTING, EngineState.STALE)


def degraded(memory: Memory, driver: Driver | None, running: Condition) -> Condition:
    """Return whether the job goes on with less than it should have."""
    engines = engines_ready(driver, running)
    if engines.reason == Reason.ENGINE_DOWN:
        return Condition("True", engines.reason, engines.message)
    if running.reason == Reason.UNREACHABLE:
        return Condition("True", running.reason, running.message)
    failed = _failed_since_checkpoint(memory)
    if failed is not None and memory.outcome is None:
        return Condition("True", Reason.RESTARTED, f"attempt {failed.number} ended: {failed.reason}")
    return Condition("False", Reason.AS_EXPECTED, "nothing is known to be wrong")


def sound(driver: Driver | None, running: Condition) -> Condition:
    """Return whether the learning is free of all that `spec.watch` looks for."""
    if driver is None or driver.status is None or running.status != "True":
        return Condition("Unknown", Reason.NOT_TRAINING, "the learning is watched while the job trains")
    found = driver.status.findings
    if not found:
        return Condition("True", Reason.NOTHING_FOUND, "nothing that spec.watch looks for holds")
    said = (f"{finding.name}: {finding.evidence}. {finding.advice}" for finding in found)
    return Condition("False", ",".join(finding.name for finding in found), " ".join(said))


def _failed_since_checkpoint(memory: Memory) -> Attempt | None:
    """Return the newest failed attempt after which no checkpoint has been saved."""
    ended = [attempt for attempt in memory.attempts if not attempt.is_open]
    last = ended[-1] if ended else None
    if last is None or last.exit_code in (Exit.OK, Exit.PREEMPTED):
        return None
    newest = memory.attempts[-1]
    return last if newest.checkpoint == last.checkpoint else None


def _ending(memory: Memory) -> Conditions:
    outcome = memory.outcome
    if outcome is None:
        unknown = Condition("Unknown", Reason.IN_PROGRESS, "the job has not ended")
        return {Type.SUCCEEDED: unknown, Type.FAILED: unknown}
    said = (outcome.reason, outcome.message)
    yes, no = Condition("True", *said), Condition("False", *said)
    return {Type.SUCCEEDED: yes, Type.FAILED: no} if outcome.succeeded else {Type.SUCCEEDED: no, Type.FAILED: yes}


def _summary(memory: Memory, running: Condition) -> Conditions:
    """Return Ready, Reconciling and Stalled as kstatus, Flux and Argo CD read them: Ready also when all is done."""
    outcome, said = memory.outcome, (running.reason, running.message)
    if outcome is not None and not outcome.succeeded:
        said = (outcome.reason, outcome.message)
        return _triple("False", "False", "True", said)
    if outcome is not None:
        return _triple("True", "False", "False", (outcome.reason, outcome.message))
    if running.reason == Reason.SUSPENDED:
        return _triple("False", "False", "False", said)
    if running.reason == Reason.RUNNING:
        return _triple("True", "False", "False", said)
    return _triple("False", "True", "False", said)


def _triple(ready: str, reconciling: str, stalled: str, said: tuple[str, str]) -> Conditions:
    kinds = (Type.READY, Type.RECONCILING, Type.STALLED)
    return {kind: _condition(status, said) for kind, status in zip(kinds, (ready, reconciling, stalled), strict=True)}


def _condition(status: str, said: tuple[str, str]) -> Condition:
    assert status in ("True", "False", "Unknown")
    return Condition(status, *said)  # type: ignore[arg-type]  # the assertion above
