"""`python -m rljob_operator.installation`: the checks of `helm test`, one line each; exit code 1 if one fails.

It runs as the operator's ServiceAccount: are RLJobs and RayClusters served, are all permissions granted, which replica
leads?
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from rljob_operator.cluster.cluster import Cluster, ClusterError, path
from rljob_operator.identity import GROUP
from rljob_operator.runtime.leader import LEASE_S
from rljob_operator.world.world import seconds

Rights = Sequence[tuple[str, str, Sequence[str]]]
"""API group, resource, verbs"""
RIGHTS: Rights = (
    (GROUP, "rljobs", ("list", "watch", "delete")),
    (GROUP, "rljobs/status", ("patch",)),
    (GROUP, "rljobs/finalizers", ("update",)),
    ("ray.io", "rayclusters", ("list", "watch", "create", "patch", "delete")),
    ("", "configmaps", ("list", "watch", "create", "patch", "delete")),
    ("", "services", ("list", "watch", "create", "patch", "delete")),
    ("networking.k8s.io", "networkpolicies", ("list", "watch", "create", "patch", "delete")),
    ("apps", "statefulsets", ("list", "watch", "create", "patch", "delete")),
    ("", "pods", ("list", "watch")),
    ("", "secrets", ("create", "delete")),
    ("batch", "jobs", ("get", "create", "delete")),
    ("coordination.k8s.io", "leases", ("get",)),
    ("", "resourcequotas", ("list", "watch")),
    ("", "limitranges", ("list", "watch")),
    ("events.k8s.io", "events", ("list", "create", "patch")),
)
"""All that the operator does. The chart gives it exactly these, as a test sees to."""
SERVED = {"RLJob": "install the CRD: value crd.install", "RayCluster": "install KubeRay 1.6 or newer"}
"""kind -> what to do when the API server does not know it"""
REVIEW = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PATIENCE_S = 60.0
"""for a replica to lead: `helm test` may follow `helm install` at once [s]"""
RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class Project:
    """Another project that the operator works with, if the chart says so."""

    served: Mapping[str, str]
    """kind -> what to do when the API server does not know it"""
    rights: Rights
    """what the operator does with its objects"""


KUEUE = Project(
    {"Workload": "install Kueue 0.15 or newer, or set kueue.enabled to false"},
    (("kueue.x-k8s.io", "workloads", ("list", "watch")),),
)
AGENT_SANDBOX = Project(
    {"Sandbox": "install agent-sandbox 0.5 or newer, or set agentSandbox.enabled to false"},
    (("agents.x-k8s.io", "sandboxes", ("list", "watch", "create", "patch", "delete")),),
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    text: str
    remedy: str = ""
    """what to do; empty: the check passed"""

    def __str__(self) -> str:
        return f"FAILED  {self.text}; {self.remedy}" if self.remedy else f"ok      {self.text}"


async def answers(
    cluster: Cluster, namespaces: Sequence[str], lease_namespace: str, lease: str, beside: Sequence[Project]
) -> AsyncIterator[Check]:
    """Run all checks; no namespaces: in the whole cluster."""
    where: Sequence[str] = namespaces or ("",)
    for kind, remedy in chain(SERVED.items(), *(project.served.items() for project in beside)):
        yield await _is_served(cluster, kind, where[0], remedy)
    for namespace in where:
        yield await _has_rights(cluster, namespace, (*RIGHTS, *chain(*(project.rights for project in beside))))
    yield await _has_leader(cluster, lease_namespace, lease)


async def _is_served(cluster: Cluster, kind: str, namespace: str, remedy: str) -> Check:
    try:
        await cluster.request("GET", path(kind, namespace), [("limit", "1")])
    except ClusterError as error:
        said = " ".join(str(error).split())
        return Check(f"kind {kind} is not served: {said}", remedy if error.status == 404 else "see the message")
    return Check(f"kind {kind} is served")


async def _has_rights(cluster: Cluster, namespace: str, wanted: Rights) -> Check:
    missing = [
        f"{verb} {resource}{'.' + group if group else ''}"
        for group, resource, verbs in wanted
        for verb in verbs
        if not await _may(cluster, namespace, group, resource, verb)
    ]
    place = f"namespace {namespace}" if namespace else "all namespaces"
    if missing:
        return Check(
            f"rights are missing in {place}: {', '.join(missing)}", "`helm upgrade` restores the chart's rules"
        )
    return Check(f"all rights are there in {place}")


async def _may(cluster: Cluster, namespace: str, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    asked = {"namespace": namespace, "group": group, "resource": name, "subresource": part, "verb": verb}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await cluster.request("POST", REVIEW, (), body)
    return bool(answer["status"]["allowed"])


async def _has_leader(cluster: Cluster, namespace: str, name: str) -> Check:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        lease = await cluster.read_lease(namespace, name)
        spec = lease["spec"] if lease else {}
        if spec.get("holderIdentity"):
            age_s = datetime.now(UTC).timestamp() - seconds(spec["renewTime"])
            if age_s < LEASE_S:
                return Check(f"{spec['holderIdentity']} leads")
        if asyncio.get_running_loop().time() > deadline:
            return Check(
                f"no replica leads: Lease {namespace}/{name} is not renewed", "see the log of the operator's pods"
            )
        await asyncio.sleep(RETRY_S)


async def main(
    arguments: Sequence[str], connect: Callable[[str | None, str], Awaitable[Cluster]] = Cluster.connect
) -> int:
    """Print every answer; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rljob_operator.installation", description=__doc__)
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="absent: the pod's ServiceAccount")
    parser.add_argument("--namespace", action="append", default=[], help="that the operator watches; absent: all")
    parser.add_argument("--lease-namespace", required=True, help="of the operator's Lease")
    parser.add_argument("--lease", required=True, help="its name")
    for option, project, name in (("--kueue", KUEUE, "Kueue"), ("--agent-sandbox", AGENT_SANDBOX, "agent-sandbox")):
        text = f"check that {name} is there, too"
        parser.add_argument(option, dest="beside", action="append_const", const=project, default=[], help=text)
    given = parser.parse_args(arguments)
    cluster = await connect(given.kubeconfig, "rljob-installation")
    failed = False
    try:
        async for answer in answers(cluster, given.namespace, given.lease_namespace, given.lease, given.beside):
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()
            failed = failed or bool(answer.remedy)
    except ClusterError as error:
        sys.stdout.write(f"FAILED  {error}\n")
        failed = True
    finally:
        await cluster.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
