"""What `helm test` prints, and its exit code. Against a real API server: tests/integration/operator."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.cluster.cluster import Cluster, ClusterError, GoneError
from rljob_operator.identity import Manifest
from rljob_operator.installation import AGENT_SANDBOX, KUEUE, RIGHTS, main
from rljob_operator.runtime.leader import LEASE_S
from support.trainer import virtual_time

LEASE = ("--lease-namespace=ops", "--lease=rljob")


class Installed:
    """An API server where everything is as the chart makes it, but for what a test changes."""

    def __init__(
        self, refused: Sequence[tuple[str, str, str, str]] = (), failing: Mapping[str, ClusterError] | None = None
    ) -> None:
        self.refused = refused
        """namespace, API group, resource, verb"""
        self.failing = failing or {}
        """errors by the plural of a kind"""
        self.asked: set[tuple[str, str, str, str]] = set()
        self.leads_at = 0.0
        """when a replica begins to renew the Lease [loop s]"""
        self.age_s = 0.0
        """of the Lease's last renewal"""
        self.connected_by: tuple[str | None, str] | None = None
        self.is_closed = False

    async def connect(self, kubeconfig: str | None, identity: str) -> Cluster:
        self.connected_by = (kubeconfig, identity)
        return cast(Cluster, self)

    async def close(self) -> None:
        self.is_closed = True

    async def request(self, method: str, where: str, query: Sequence[Any] = (), body: Manifest | None = None) -> Any:
        if body is None:
            error = self.failing.get(where.rpartition("/")[2])
            if error is not None:
                raise error
            return {"items": []}
        assert where == "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert (body["apiVersion"], body["kind"]) == ("authorization.k8s.io/v1", "SelfSubjectAccessReview")
        asked = body["spec"]["resourceAttributes"]
        name = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        right = (asked["namespace"], asked["group"], name, asked["verb"])
        self.asked.add(right)
        return {"status": {"allowed": right not in self.refused}}

    async def read_lease(self, namespace: str, name: str) -> Manifest | None:
        if "leases" in self.failing:
            raise self.failing["leases"]
        if asyncio.get_running_loop().time() < self.leads_at:
            return None
        renewed = datetime.now(UTC) - timedelta(seconds=self.age_s)
        time = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"spec": {"holderIdentity": f"{namespace}/{name}-0", "renewTime": time}}


def checked(cluster: Installed, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines that are printed."""
    code = virtual_time.run(main((*LEASE, *more), cluster.connect))
    assert cluster.is_closed
    return code, capsys.readouterr().out.splitlines()


def test_a_whole_installation_passes(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Installed()
    assert checked(cluster, capsys, "--kubeconfig=/config") == (
        0,
        [
            "ok      kind RLJob is served",
            "ok      kind RayCluster is served",
            "ok      all rights are there in all namespaces",
            "ok      ops/rljob-0 leads",
        ],
    )
    assert cluster.connected_by == ("/config", "rljob-installation")


def test_without_namespaces_rights_are_asked_for_in_the_whole_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Installed()
    checked(cluster, capsys)
    assert cluster.asked == {("", group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs}


@pytest.mark.parametrize(
    ("option", "kind", "project"), [("--kueue", "Workload", KUEUE), ("--agent-sandbox", "Sandbox", AGENT_SANDBOX)]
)
def test_another_project_is_checked_only_where_the_operator_works_with_it(option, kind, project, capsys) -> None:
    with_it, without_it = Installed(), Installed()
    line = f"ok      kind {kind} is served"
    rights = {("", group, resource, verb) for group, resource, verbs in project.rights for verb in verbs}
    assert line in checked(with_it, capsys, option)[1] and line not in checked(without_it, capsys)[1]
    assert with_it.asked - without_it.asked == rights


@pytest.mark.parametrize(
    ("option", "plural", "remedy"),
    [
        ("", "rljobs", "install the CRD: value crd.install"),
        ("", "rayclusters", "install KubeRay 1.6 or newer"),
        ("--kueue", "workloads", "install Kueue 0.15 or newer, or set kueue.enabled to false"),
        ("--agent-sandbox", "sandboxes", "install agent-sandbox 0.5 or newer, or set agentSandbox.enabled to false"),
    ],
)
def test_a_kind_that_is_not_served_is_a_failure_that_says_what_to_install(option, plural, remedy, capsys) -> None:
    cluster = Installed(failing={plural: GoneError("GET x: 404 page\n not found", 404)})
    code, lines = checked(cluster, capsys, *filter(None, [option]))
    (failed,) = (line for line in lines if line.startswith("FAILED"))
    assert code == 1
    assert failed.endswith(f" is not served: GET x: 404 page not found; {remedy}")


def test_a_kind_that_may_not_be_read_needs_no_installation_of_another_project(capsys) -> None:
    cluster = Installed(failing={"rayclusters": ClusterError("GET x: 403 forbidden", 403)})
    code, lines = checked(cluster, capsys)
    assert (code, lines[1]) == (1, "FAILED  kind RayCluster is not served: GET x: 403 forbidden; see the message")


rights = st.sampled_from([(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs])


@settings(max_examples=30)
@given(st.sampled_from(["a", "b"]), rights)
def test_a_missing_right_is_named_in_its_namespace_alone(namespace: str, right: tuple[str, str, str]) -> None:
    group, resource, verb = right
    with redirect_stdout(StringIO()) as printed:
        code = asyncio.run(main((*LEASE, "--namespace=a", "--namespace=b"), Installed([(namespace, *right)]).connect))
    said = printed.getvalue().splitlines()
    shown = f"{verb} {resource}{'.' + group if group else ''}"
    assert code == 1
    assert [line for line in said if line.startswith("FAILED")] == [
        f"FAILED  rights are missing in namespace {namespace}: {shown}; `helm upgrade` restores the chart's rules"
    ]
    assert said[-1] == "ok      ops/rljob-0 leads"
    (other,) = {"a", "b"} - {namespace}
    assert f"ok      all rights are there in namespace {other}" in said


def test_a_replica_that_leads_within_a_minute_passes(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Installed()
    cluster.leads_at = 59.0
    code, lines = checked(cluster, capsys)
    assert (code, lines[-1]) == (0, "ok      ops/rljob-0 leads")


@pytest.mark.parametrize(("leads_at", "age_s"), [(70.0, 0.0), (0.0, LEASE_S + 1.0)])
def test_a_lease_that_no_replica_renews_is_a_failure_after_a_minute(leads_at: float, age_s: float, capsys) -> None:
    cluster = Installed()
    cluster.leads_at, cluster.age_s = leads_at, age_s
    code, lines = checked(cluster, capsys)
    assert code == 1
    assert lines[-1] == ("FAILED  no replica leads: Lease ops/rljob is not renewed; see the log of the operator's pods")


def test_a_request_that_fails_is_printed_and_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Installed(failing={"leases": ClusterError("GET lease: 500 etcd is gone", 500)})
    code, lines = checked(cluster, capsys)
    assert (code, lines[-1]) == (1, "FAILED  GET lease: 500 etcd is gone")
