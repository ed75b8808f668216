"""An RLJob in a cluster, as its users see it."""

from local_cluster.kubectl import Kubectl, Manifest
from support.operator.operator_world import raw_job
from support.waiting import eventually


class Job:
    """One RLJob in the cluster, as its users see it."""

    def __init__(self, kubectl: Kubectl, namespace: str, name: str = "sums", **sections: object) -> None:
        self._kubectl = kubectl
        self.namespace = namespace
        self.name = name
        raw = raw_job(name, **sections)
        kubectl.apply({**raw, "metadata": {"name": name, "namespace": namespace}})

    def raw(self) -> Manifest:
        return self._kubectl.get("rljob", self.name, "-n", self.namespace)

    def conditions(self) -> dict[str, str]:
        status = self.raw().get("status", {})
        return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}

    def until(self, kind: str, status: str = "True", deadline_s: float = 90.0) -> Manifest:
        """Wait for a condition, and return the status."""
        # Each look starts a kubectl: more of them would cost more than they gain.
        eventually(self.conditions, lambda conditions: conditions.get(kind) == status, deadline_s, poll_s=0.5)
        found: Manifest = self.raw()["status"]
        return found

    def patch(self, spec: str) -> None:
        """Change the spec by this JSON."""
        self._kubectl("patch", "rljob", self.name, "-n", self.namespace, "--type=merge", "-p", f'{{"spec":{spec}}}')

    def children(self) -> set[str]:
        kinds = "rayclusters,configmaps,secrets,services,networkpolicies"
        items = self._kubectl.get(kinds, "-n", self.namespace, "-l", f"rljob.dev/job={self.name}")["items"]
        return {f"{item['kind']}/{item['metadata']['name']}" for item in items}

    def pods(self) -> list[Manifest]:
        pods: list[Manifest] = self._kubectl.get("pods", "-n", self.namespace, "-l", f"rljob.dev/job={self.name}")[
            "items"
        ]
        return pods

    def events(self) -> set[str]:
        """Return the reasons of its events."""
        events = self._kubectl.get("events.events.k8s.io", "-n", self.namespace)["items"]
        return {event["reason"] for event in events if event["regarding"]["name"] == self.name}

    def delete(self) -> None:
        self._kubectl("delete", "rljob", self.name, "-n", self.namespace, "--wait=false")
