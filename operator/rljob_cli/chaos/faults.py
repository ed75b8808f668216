"""The faults: what each hits, and how. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rljob_cli.jobs.jobs import Manifest, nearest
from rljob_operator.identity import RAY_GROUP_LABEL

Role = Literal["driver", "router", "engine", "rank"]
"""of a process, as `in_pod` finds it"""
HEAD = "headgroup"
ENGINES, RANKS = ("rollout", "workers"), ("trainer", "workers")
"""first words of the groups of a RayCluster whose pods have such processes"""
WORKERS = ("rollout", "trainer", "workers")


class Fault(StrEnum):
    """What happens to a job."""

    ENGINE_KILL = "engine-kill"
    ENGINE_STOP = "engine-stop"
    ROUTER_KILL = "router-kill"
    ROUTER_STOP = "router-stop"
    DRIVER_KILL = "driver-kill"
    DRIVER_STOP = "driver-stop"
    RANK_KILL = "rank-kill"
    RANK_STOP = "rank-stop"
    POD_DELETE = "pod-delete"
    HEAD_DELETE = "head-delete"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal to one process."""

    name: Literal["SIGKILL", "SIGSTOP"]
    role: Role


@dataclass(frozen=True, slots=True)
class How:
    """How a fault is made."""

    groups: tuple[str, ...]
    """whose pods are hit"""
    by: Signal | Literal["delete", "evict"]
    ends_attempt: bool = False


FAULTS: dict[Fault, How] = {
    Fault.ENGINE_KILL: How(ENGINES, Signal("SIGKILL", "engine")),
    Fault.ENGINE_STOP: How(ENGINES, Signal("SIGSTOP", "engine")),
    Fault.ROUTER_KILL: How((HEAD,), Signal("SIGKILL", "router")),
    Fault.ROUTER_STOP: How((HEAD,), Signal("SIGSTOP", "router")),
    Fault.DRIVER_KILL: How((HEAD,), Signal("SIGKILL", "driver"), ends_attempt=True),
    Fault.DRIVER_STOP: How((HEAD,), Signal("SIGSTOP", "driver"), ends_attempt=True),
    Fault.RANK_KILL: How(RANKS, Signal("SIGKILL", "rank")),
    Fault.RANK_STOP: How(RANKS, Signal("SIGSTOP", "rank"), ends_attempt=True),
    Fault.POD_DELETE: How(WORKERS, "delete"),
    Fault.HEAD_DELETE: How((HEAD,), "delete", ends_attempt=True),
    Fault.EVICT: How(WORKERS, "evict"),
}


class UnknownFaultError(ValueError):
    """There is no such fault; the text names the nearest."""


def faults(text: str) -> tuple[Fault, ...]:
    """Return the faults of a list with commas, each once. Raises UnknownFaultError."""
    named = [word.strip() for word in text.split(",") if word.strip()]
    for word in named:
        if word not in list(Fault):
            raise UnknownFaultError(
                f"{word!r} is not a fault; nearest valid: {nearest(word, Fault) or ','.join(Fault)}"
            )
    if not named:
        raise UnknownFaultError(f"names no fault; valid: {','.join(Fault)}")
    return tuple(dict.fromkeys(map(Fault, named)))


def group_of(pod: Manifest) -> str:
    """Return the group of the RayCluster that a pod is of; "" for a pod of another kind, for example of tools."""
    return str((pod["metadata"].get("labels") or {}).get(RAY_GROUP_LABEL, ""))


def targets(fault: Fault, pods: list[Manifest], draw: float) -> list[Manifest]:
    """Return the running pods that a fault can hit: the one that was drawn, and then the others.

    `draw`: from 0 to below 1, of the plan.
    """
    fitting = [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and pod.get("status", {}).get("phase") == "Running"
        and group_of(pod).startswith(FAULTS[fault].groups)
    ]
    fitting.sort(key=lambda pod: str(pod["metadata"]["name"]))
    first = int(draw * len(fitting))
    return fitting[first:] + fitting[:first]
