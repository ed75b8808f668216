"""ResourceQuotas and LimitRanges of a namespace against the pods of a job. Pure.

LimitRanges come first: they complete requests and limits, which quotas then count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.quantities import PODS, amounts, shown
from rljob_operator.identity import Manifest

FIELD = "spec.runtime.headResources and workerResources"
WORDS: Mapping[str, str] = {"requests": "request", "limits": "limit"}
COUNTED = ("cpu", "memory", "ephemeral-storage")
"""resources that a quota may name without `requests.`"""
REQUIRED = ("cpu", "memory")
"""where a quota counts these, the API server refuses pods without them"""


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]
    selector: tuple[Mapping[str, Any], ...] = ()
    """scopes, as in `spec.scopeSelector.matchExpressions`; all must match"""


@dataclass(frozen=True, slots=True)
class Limit:
    """One item of a LimitRange."""

    name: str
    kind: str
    """`Container` or `Pod`"""
    least: Mapping[str, int]
    most: Mapping[str, int]
    default: Mapping[str, int]
    """limits of containers without"""
    default_request: Mapping[str, int]


def quota_of(raw: Manifest) -> Quota:
    """Return a ResourceQuota as the API server shows it; one that is not counted yet uses nothing."""
    spec, status = raw.get("spec", {}), raw.get("status", {})
    scopes = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes", ())]
    named = spec.get("scopeSelector", {}).get("matchExpressions", ())
    return Quota(raw["metadata"]["name"], amounts(spec.get("hard")), amounts(status.get("used")), (*scopes, *named))


def limits_of(raw: Manifest) -> tuple[Limit, ...]:
    """Return the items of a LimitRange that concern pods."""
    return tuple(
        Limit(
            name=raw["metadata"]["name"],
            kind=item["type"],
            least=amounts(item.get("min")),
            most=amounts(item.get("max")),
            default=amounts(item.get("default")),
            default_request=amounts(item.get("defaultRequest")),
        )
        for item in raw.get("spec", {}).get("limits", ())
        if item["type"] in ("Container", "Pod")
    )


def completed(pods: Pods, limits: Sequence[Limit]) -> Pods:
    """Return pods with the requests and limits that LimitRanges give them."""
    containers = pods.containers
    for limit in (each for each in limits if each.kind == "Container"):
        containers = tuple(_completed(container, limit) for container in containers)
    return replace(pods, containers=containers)


def _completed(container: Container, limit: Limit) -> Container:
    limits = {**limit.default, **container.limits}
    return replace(container, limits=limits, requests={**limits, **limit.default_request, **container.requests})


def against_limits(pods: Sequence[Pods], limits: Sequence[Limit]) -> Iterator[Obstacle]:
    """Yield what LimitRanges forbid; `pods` are completed."""
    for each in pods:
        for limit in limits:
            sizes = [each] if limit.kind == "Pod" else each.containers
            for size in sizes:
                yield from _beyond(limit, each.group, size)


def _beyond(limit: Limit, group: str, size: Pods | Container) -> Iterator[Obstacle]:
    who = f"a {limit.kind.lower()} of the group {group}"
    for kind, word in WORDS.items():
        has: Mapping[str, int] = getattr(size, kind)
        for name, most in limit.most.items():
            if has.get(name, 0) > most:
                text = f"LimitRange {limit.name} allows at most {shown(name, most)}"
                yield Obstacle(Outcome.NEVER, f"{text}, and the {word} of {who} is {shown(name, has[name])}", name)
        for name, least in limit.least.items():
            if name in has and has[name] < least:
                text = f"LimitRange {limit.name} asks for at least {shown(name, least)}"
                yield Obstacle(Outcome.NEVER, f"{text}, and the {word} of {who} is {shown(name, has[name])}", name)


def against_quotas(pods: Sequence[Pods], quotas: Sequence[Quota]) -> Iterator[Obstacle]:
    """Yield what quotas do not allow, or do not allow now; `pods` are completed."""
    for quota in quotas:
        mine = [each for each in pods if all(_matches(scope, each) for scope in quota.selector)]
        for counted, hard in quota.hard.items():
            yield from _counted(quota, counted, hard, mine)


def counts(quota: Quota, pods: Sequence[Pods]) -> dict[str, int]:
    """Return how much of each line of a quota these pods take; `pods` are completed."""
    mine = [each for each in pods if all(_matches(scope, each) for scope in quota.selector)]
    lines = {counted: found for counted in quota.hard if (found := _resource(counted)) is not None}
    return {counted: _needed(kind, name, mine) for counted, (kind, name) in lines.items()}


def _needed(kind: str, name: str, pods: Sequence[Pods]) -> int:
    return sum(getattr(each, kind).get(name, 0) * each.count for each in pods)


def _counted(quota: Quota, counted: str, hard: int, pods: Sequence[Pods]) -> Iterator[Obstacle]:
    found = _resource(counted)
    if found is None or not pods:
        return
    kind, name = found
    without = [each.group for each in pods if name in REQUIRED and any(_lacks(c, kind, name) for c in each.containers)]
    if without:
        text = f"ResourceQuota {quota.name} counts {counted}, and pods of the group {without[0]} have no {WORDS[kind]}"
        yield Obstacle(Outcome.NEVER, f"{text} of {name}: set {FIELD}", None)
        return
    needed = _needed(kind, name, pods)
    left = hard - quota.used.get(counted, 0)
    if needed > hard:
        text = f"ResourceQuota {quota.name} allows {shown(name, hard)} in all"
        yield Obstacle(Outcome.NEVER, text if kind == "requests" else f"{text} as limits", name)
    elif needed > left:
        # The queue promises room before it is free, so more than everything may be taken.
        taken = min(hard, hard - left)
        text = f"ResourceQuota {quota.name} leaves {shown(name, max(0, left))}; {shown(name, taken)} are in use"
        yield Obstacle(Outcome.LATER, text, name)


def _lacks(container: Container, kind: str, name: str) -> bool:
    has: Mapping[str, int] = getattr(container, kind)
    return name not in has


def _resource(counted: str) -> tuple[str, str] | None:
    """Return what a line of a quota counts of pods: (`requests` or `limits`, resource); None: other objects."""
    if counted in (PODS, "count/pods"):
        return "requests", PODS
    kind, dot, name = counted.partition(".")
    if dot and kind in WORDS:
        return None if name == "storage" else (kind, name)
    return ("requests", counted) if counted in COUNTED or counted.startswith("hugepages-") else None


def _matches(scope: Mapping[str, Any], pods: Pods) -> bool:
    """Return whether a scope covers these pods. They set no deadline and no affinity."""
    match scope["scopeName"]:
        case "Terminating" | "CrossNamespacePodAffinity":
            return False
        case "NotTerminating":
            return True
        case "BestEffort":
            return pods.is_best_effort
        case "NotBestEffort":
            return not pods.is_best_effort
        case "PriorityClass":
            return _has_priority(scope, pods.priority_class)
        case _:
            return False  # a scope of a newer Kubernetes: what it covers is not known, so nothing is claimed


def _has_priority(scope: Mapping[str, Any], name: str | None) -> bool:
    values = scope.get("values") or ()
    match scope.get("operator", "Exists"):
        case "Exists":
            return name is not None
        case "DoesNotExist":
            return name is None
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case _:
            return False
