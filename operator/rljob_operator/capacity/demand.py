"""The pods of a job, with what each requests. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_operator.capacity.quantities import PODS, amounts
from rljob_operator.children.sized_pods import sized_pods
from rljob_operator.children.tool_pods import template
from rljob_operator.identity import ClusterRef, Manifest, cluster_name
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.pod_roles import HEAD, TOOLS
from rljob_operator.world.silent_nodes import is_bound

INIT = {"cpu": "200m", "memory": "256Mi"}
"""what the init container requests that KubeRay 1.6 adds to every worker"""


@dataclass(frozen=True, slots=True)
class Container:
    """The resources of one container."""

    requests: Mapping[str, int]
    limits: Mapping[str, int]
    is_init: bool = False


ADDED = Container(amounts(INIT), amounts(INIT), is_init=True)


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods that are alike."""

    group: str
    """`head`, the name of the worker group, or `tools`"""
    count: int
    containers: tuple[Container, ...]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    priority_class: str | None
    avoids: frozenset[str] = frozenset()
    """nodes that they must not be on"""
    requests: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """what the scheduler counts for one pod, itself included; every node and quota asks for it"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "requests", {**_largest(self.containers, "requests"), PODS: 1000})

    @property
    def limits(self) -> dict[str, int]:
        return _largest(self.containers, "limits")

    @property
    def is_best_effort(self) -> bool:
        """Whether no container has a request or a limit of CPU or memory."""
        named = {name for each in self.containers for name in (*each.requests, *each.limits)}
        return not named & {"cpu", "memory"}


def as_kueue_counts(pods: Pods) -> Pods:
    """Return pods without what KubeRay adds to them later."""
    return replace(pods, containers=tuple(each for each in pods.containers if each != ADDED))


def demand(job: AdmittedJob) -> tuple[Pods, ...]:
    """Return the pods of a job, head first."""
    return (*(alike(group, count, pod) for group, count, pod in sized_pods(job)), *_for_tools(job))


def _for_tools(job: AdmittedJob) -> Iterator[Pods]:
    if (num := num_tool_pods(job.spec)) > 0:
        yield alike(TOOLS, num, template(job, ClusterRef(cluster_name(job.name, job.uid, 1)))["spec"])


def total(pods: tuple[Pods, ...]) -> dict[str, int]:
    """Return what all pods request together."""
    found: dict[str, int] = {}
    for each in pods:
        for name, amount in each.requests.items():
            found[name] = found.get(name, 0) + amount * each.count
    return found


def alike(group: str, count: int, pod: Manifest) -> Pods:
    """Return `count` pods of a group; `pod` is the spec of one."""
    containers = [_container(each, is_init) for each, is_init in containers_of(pod)]
    if group not in (HEAD, TOOLS):
        containers.append(ADDED)
    return Pods(
        group=group,
        count=count,
        containers=tuple(containers),
        node_selector=pod.get("nodeSelector", {}),
        tolerations=tuple(each for each in pod.get("tolerations", ()) if not is_bound(each)),
        priority_class=pod.get("priorityClassName"),
    )


def containers_of(pod: Manifest) -> Iterator[tuple[Manifest, bool]]:
    """Yield the containers of a pod's spec, each with whether it ends before the others begin."""
    for each in pod.get("containers", ()):
        yield each, False
    for each in pod.get("initContainers", ()):
        yield each, each.get("restartPolicy") != "Always"  # a sidecar is an init container that stays


def _container(raw: Manifest, is_init: bool) -> Container:
    resources = raw.get("resources", {})
    limits = amounts(resources.get("limits"))
    # The API server completes requests in the same way.
    return Container({**limits, **amounts(resources.get("requests"))}, limits, is_init)


def _largest(containers: tuple[Container, ...], kind: str) -> dict[str, int]:
    """Return the sum of the containers, or what an init container has if that is more."""
    found: dict[str, int] = {}
    for each in sorted(containers, key=lambda each: each.is_init):
        for name, amount in getattr(each, kind).items():
            found[name] = max(found.get(name, 0), amount) if each.is_init else found.get(name, 0) + amount
    return found
