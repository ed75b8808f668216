"""What the status of a pod says about a failure, as lines of a log. Pure."""

from collections.abc import Iterator

from rljob_operator.identity import Manifest

FINE = frozenset({"Completed", "PodInitializing", "ContainerCreating"})
"""reasons of containers' states that are no trouble"""


def trouble_of(pod: Manifest) -> tuple[str, ...]:
    """Return what ended or holds back a pod and its containers, a line each."""
    return tuple(_lines(pod["metadata"]["name"], pod.get("status", {})))


def _lines(name: str, status: Manifest) -> Iterator[str]:
    if status.get("reason"):
        yield f"pod {name} Warning {status['reason']}: {status.get('message', '')}"
    for condition in status.get("conditions", ()):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            yield f"pod {name} Warning {condition.get('reason')}: {condition.get('message', '')}"
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        yield from _of_container(name, container)


def _of_container(pod: str, container: Manifest) -> Iterator[str]:
    for state in (container.get("lastState", {}), container.get("state", {})):
        for kind in ("terminated", "waiting"):
            found = state.get(kind)
            if found and found.get("reason") and found["reason"] not in FINE:
                code = f" exit code {found['exitCode']}" if "exitCode" in found else ""
                at = f"{found['finishedAt']} " if found.get("finishedAt") else ""
                said = found.get("message", "")
                yield f"{at}pod {pod} container {container['name']} {kind} reason: {found['reason']}{code}: {said}"
