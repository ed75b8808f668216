"""What the command line asks an API server for, and what it makes of each answer."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_cli.cluster import cluster as clusters
from rljob_cli.cluster.cluster import Cluster, ClusterError, LostError, NoObjectError, NotPossibleError, connect
from rljob_cli.cluster.why_verb import explain
from rljob_cli.jobs.jobs import Manifest, job_of
from support.cli.answers import ERROR, STDERR, STDOUT, Answers, kubeconfig, page, refusal
from support.cli.sample_job import raw

JOBS = "apis/rljob.dev/v1alpha1/rljobs"
OF_ML = "apis/rljob.dev/v1alpha1/namespaces/ml/rljobs"
PODS = "api/v1/namespaces/ml/pods"
DONE = ERROR + b'{"status": "Success"}'


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def cluster(answers: Answers, tmp_path: Path) -> Iterator[Cluster]:
    with answers.served(tmp_path) as file:
        yield connect(file, None)


def named(name: str, namespace: str = "ml") -> Manifest:
    return raw(name=name, namespace=namespace)


def pod(name: str = "head", phase: str = "Running", **metadata: Any) -> Manifest:
    spec = {"containers": [{"name": "ray"}, {"name": "sidecar"}]}
    metadata = {"name": name, "namespace": "ml", "creationTimestamp": "2026-11-21T12:00:00Z", "labels": {}, **metadata}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def said(error: pytest.ExceptionInfo[ClusterError]) -> tuple[type[ClusterError], Exit, str]:
    return error.type, error.value.exit, str(error.value)


def test_jobs_are_read_in_pages_and_sorted(cluster: Cluster, answers: Answers):
    answers.get(JOBS, page(named("b"), named("a", "other"), token="more"), page(named("a")))
    assert [job.key for job in cluster.jobs(None)] == ["ml/a", "ml/b", "other/a"]
    assert [dict(each.query) for each in answers.asked] == [{"limit": "500"}, {"limit": "500", "continue": "more"}]
    first = answers.asked[0]
    assert (first.headers["Authorization"], first.headers["Accept"]) == ("Bearer a token", "application/json")


def test_the_jobs_of_a_namespace_are_asked_for_there(cluster: Cluster, answers: Answers):
    answers.get(OF_ML, page(named("a")))
    assert [job.name for job in cluster.jobs("ml")] == ["a"]


def test_a_job_is_read_by_its_name(cluster: Cluster, answers: Answers):
    answers.get(f"{OF_ML}/sums", named("sums"))
    assert cluster.raw_job("ml", "sums") == named("sums")
    assert cluster.job("ml", "sums") == job_of(named("sums"))


@pytest.mark.parametrize(
    ("everywhere", "here", "hint"),
    [
        ([named("sums", "other"), named("sum")], [], "; there is one in namespace other"),
        ([named("sum"), named("sumz", "other")], [], "; nearest: sum"),
        ([named("quite-other"), named("another")], [], ""),
        ([named("sumz", "other")], [], "; it has none"),
        (None, [named("sum")], "; nearest: sum"),
        (None, None, ""),
    ],
)
def test_a_job_that_is_not_there_leads_to_the_one_that_was_meant(cluster, answers, everywhere, here, hint):
    answers.refuse("GET", f"{OF_ML}/sums", 404, refusal(404, "rljobs not found", name="sums"))
    for path, found in ((JOBS, everywhere), (OF_ML, here)):
        if found is None:
            answers.refuse("GET", path, 403, refusal(403, "forbidden"))
        else:
            answers.get(path, page(*found))
    with pytest.raises(ClusterError) as error:
        cluster.raw_job("ml", "sums")
    assert said(error) == (ClusterError, Exit.NOT_FOUND, f'there is no RLJob "sums" in namespace ml{hint}')


def test_a_job_is_changed_by_a_merge_patch(cluster: Cluster, answers: Answers):
    answers.given["PATCH", f"/{OF_ML}/sums"] = [(200, named("sums"))]
    cluster.change_job("ml", "sums", {"spec": {"suspend": True}})
    assert answers.asked[0].body == {"spec": {"suspend": True}}
    assert answers.asked[0].headers["Content-Type"] == "application/merge-patch+json"


def test_a_job_that_has_changed_meanwhile_is_not_changed(cluster: Cluster, answers: Answers):
    answers.refuse("PATCH", f"{OF_ML}/sums", 409, refusal(409, "the object has been modified"))
    with pytest.raises(ClusterError) as error:
        cluster.change_job("ml", "sums", {})
    text = "patch rljobs in namespace ml: 409 the object has been modified"
    assert said(error) == (ClusterError, Exit.UNREACHABLE, text)


def test_heads_are_the_running_pods_of_the_job_s_heads(cluster: Cluster, answers: Answers):
    gone = pod("gone", deletionTimestamp="2026-11-21T12:00:00Z")
    answers.get(PODS, page(pod("head"), pod("new", "Pending"), gone))
    assert [each["metadata"]["name"] for each in cluster.heads(job_of(named("sums")))] == ["head"]
    assert answers.asked[0].query["labelSelector"] == "rljob.dev/job=sums,ray.io/node-type=head"


def test_what_may_be_read_is_read_in_pages(cluster: Cluster, answers: Answers):
    answers.get("api/v1/nodes", page({"n": 1}, token="more"), page({"n": 2}))
    assert cluster.readable("api/v1/nodes", "a=b", "c=d") == [{"n": 1}, {"n": 2}]
    asked = {"labelSelector": "a=b", "fieldSelector": "c=d", "limit": "500"}
    assert [dict(each.query) for each in answers.asked] == [{**asked, "continue": each} for each in ("", "more")]


def test_what_may_not_be_read_is_none_and_other_failures_are_failures(cluster: Cluster, answers: Answers):
    answers.refuse("GET", "api/v1/nodes", 403, refusal(403, "nodes is forbidden"))
    assert cluster.readable("api/v1/nodes") is None
    answers.refuse("GET", "api/v1/nodes", 500, refusal(500, "etcd is away"))
    with pytest.raises(ClusterError) as error:
        cluster.readable("api/v1/nodes")
    assert said(error)[1:] == (Exit.UNREACHABLE, "list nodes at api/v1/nodes: 500 etcd is away")


def test_the_values_of_a_secret_are_decoded(cluster: Cluster, answers: Answers):
    path = "api/v1/namespaces/ml/secrets/key"
    answers.get(path, {"data": {"token": base64.b64encode(b"secret").decode()}}, {"data": None})
    assert cluster.secret("ml", "key") == {"token": "secret"}
    assert cluster.secret("ml", "key") == {}
    answers.refuse("GET", path, 403, refusal(403, "it is secret"))
    with pytest.raises(ClusterError, match="no permission to get secrets in namespace ml; ask for a role with it"):
        cluster.secret("ml", "key")


@pytest.mark.parametrize("token", [None, "abc"])
def test_a_service_is_asked_through_the_proxy(cluster: Cluster, answers: Answers, token: str | None):
    answers.get("api/v1/namespaces/ml/services/head:8265/proxy/api/jobs", {"jobs": 1})
    assert cluster.ask_service("ml", "head", 8265, "/api/jobs", token) == {"jobs": 1}
    assert answers.asked[0].headers.get("X-Ray-Authorization") == (f"Bearer {token}" if token else None)


FORBIDDEN = 'rljobs is forbidden: User "u" cannot list'
REFUSALS = [
    (401, refusal(401, "Unauthorized"), Exit.FORBIDDEN, "authentication failed: Unauthorized"),
    (
        403,
        refusal(403, FORBIDDEN),
        Exit.FORBIDDEN,
        f"no permission to list rljobs in all namespaces; ask for a role with it. The API server says: {FORBIDDEN}",
    ),
    (
        404,
        "404 page not found\n",
        Exit.SETUP,
        "the cluster has no RLJobs: CRD rljobs.rljob.dev is absent; install rljob there (helm install)",
    ),
    (401, "<html>a proxy</html>", Exit.UNREACHABLE, "list rljobs in all namespaces: 401 <html>a proxy</html>"),
    (403, '{"kind": "Page"}', Exit.UNREACHABLE, 'list rljobs in all namespaces: 403 {"kind": "Page"}'),
    (429, refusal(429, "too many requests"), Exit.UNREACHABLE, "list rljobs in all namespaces: 429 too many requests"),
    (502, "x" * 900, Exit.UNREACHABLE, f"list rljobs in all namespaces: 502 {'x' * 500}"),
]


@pytest.mark.parametrize(("status", "body", "code", "text"), REFUSALS)
def test_a_refusal_says_what_was_asked_for_and_what_helps(cluster, answers, status, body, code, text):
    answers.refuse("GET", JOBS, status, body)
    with pytest.raises(ClusterError) as error:
        cluster.jobs(None)
    assert said(error) == (ClusterError, code, text)


def test_an_api_server_that_is_away_is_named(tmp_path: Path):
    away = connect(kubeconfig(tmp_path, "http://127.0.0.1:9"), None)
    with pytest.raises(ClusterError) as error:
        away.jobs("ml")
    kind, code, text = said(error)
    assert (kind, code) == (ClusterError, Exit.UNREACHABLE)
    assert text.startswith("the cluster at http://127.0.0.1:9 does not answer: ")
    assert text.endswith("Connection refused")
    assert "<" not in text, "no object of a library"


def run(cluster: Cluster, is_over: bool = False) -> bytes:
    return b"".join(cluster.run(pod(), ["cat", "/log"], lambda: is_over))


def test_a_command_runs_in_the_first_container_and_what_it_writes_is_read(cluster: Cluster, answers: Answers):
    answers.frames = [STDOUT + b"a\xff", STDOUT + b"b\n", DONE]
    assert run(cluster) == b"a\xffb\n"
    asked = answers.asked[0]
    assert asked.path == f"/{PODS}/head/exec"
    expected = {"container": "ray", "stdin": "false", "stdout": "true", "stderr": "true", "tty": "false"}
    assert {name: asked.query[name] for name in expected} == expected
    assert asked.query.getall("command") == ["cat", "/log"]  # type: ignore[attr-defined]  # aiohttp's


def test_a_command_that_goes_on_is_left_when_it_is_silent_and_all_is_over(cluster: Cluster, answers: Answers):
    answers.frames, answers.stays_open = [STDOUT + b"a"], True
    assert run(cluster, is_over=True) == b"a"


def ending(**causes: str) -> bytes:
    listed = [{"reason": reason, "message": message} for reason, message in causes.items()]
    return ERROR + json.dumps({"status": "Failure", "message": "it ended", "details": {"causes": listed}}).encode()


@pytest.mark.parametrize(
    ("frames", "kind", "code", "text"),
    [
        (
            [ending(ExitCode=str(Exit.NOT_FOUND.value))],
            NoObjectError,
            Exit.NOT_FOUND,
            "pod ml/head does not have this file",
        ),
        (
            [STDERR + b"no memory\n", ending(ExitCode="137")],
            LostError,
            Exit.UNREACHABLE,
            "reading in pod ml/head ended with 137: no memory",
        ),
        (
            [STDERR + b"no \xff memory\n", ending(ExitCode="137")],
            LostError,
            Exit.UNREACHABLE,
            "reading in pod ml/head ended with 137: no \ufffd memory",
        ),
        (
            [ERROR + b'{"status": "Failure", "message": "dial http://10.0.0.1/exec?command=cat&x=1 failed"}'],
            NotPossibleError,
            Exit.UNREACHABLE,
            "cannot run a command in pod ml/head: dial http://10.0.0.1/exec failed",
        ),
        ([STDOUT + b"a"], LostError, Exit.UNREACHABLE, "the connection to pod ml/head is lost"),
    ],
)
def test_a_command_that_fails_says_how(cluster, answers, frames, kind, code, text):
    answers.frames = frames
    with pytest.raises(ClusterError) as error:
        run(cluster)
    assert said(error) == (kind, code, text)


@pytest.mark.parametrize(
    ("status", "kind", "code", "text"),
    [
        (403, NotPossibleError, Exit.FORBIDDEN, "no permission to create pods/exec for pod ml/head"),
        (404, NoObjectError, Exit.NOT_FOUND, "pod ml/head is gone"),
        (500, NotPossibleError, Exit.UNREACHABLE, "cannot run a command in pod ml/head: Handshake status 500"),
    ],
)
def test_a_command_that_cannot_begin_says_why(cluster, answers, status, kind, code, text):
    answers.refuse("GET", f"{PODS}/head/exec", status, refusal(status, "no"))
    with pytest.raises(ClusterError) as error:
        run(cluster)
    assert said(error)[:2] == (kind, code)
    assert said(error)[2].startswith(text)
    assert "-+-+-" not in said(error)[2], "no headers"


def test_a_pod_is_made_and_deleted_at_once_after_its_use(cluster: Cluster, answers: Answers, monkeypatch):
    monkeypatch.setattr(clusters, "POLL_S", 0.0)
    answers.given["POST", f"/{PODS}"] = [(201, pod("reader-x1", "Pending"))]
    answers.get(f"{PODS}/reader-x1", pod("reader-x1", "Pending"), pod("reader-x1"))
    answers.given["DELETE", f"/{PODS}/reader-x1"] = [(200, {})]
    with cluster.running(pod("reader")) as there:
        assert there == pod("reader-x1")
        assert [each.method for each in answers.asked] == ["POST", "GET", "GET"]
    assert answers.asked[0].body == pod("reader")
    assert (answers.asked[-1].method, dict(answers.asked[-1].query)) == ("DELETE", {"gracePeriodSeconds": "0"})


def test_a_pod_that_may_not_be_made_is_not_deleted(cluster: Cluster, answers: Answers):
    answers.refuse("POST", PODS, 403, refusal(403, "no"))
    with pytest.raises(NotPossibleError, match="no permission to create pods in namespace ml") as error:
        cluster.running(pod("reader")).__enter__()
    assert error.value.exit is Exit.FORBIDDEN
    assert len(answers.asked) == 1


READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize(
    ("status", "start_s", "why"),
    [
        ({"phase": "Failed"}, 60.0, "PodFailed: the pod has failed"),
        ({"phase": "Succeeded"}, 60.0, "it is Succeeded"),
        ({"phase": "Pending", **READY}, -1.0, "it is Pending after -1 s"),
    ],
)
def test_a_pod_that_does_not_come_to_run_is_deleted_and_the_reason_said(
    cluster, answers, monkeypatch, status, start_s, why
):
    monkeypatch.setattr(clusters, "START_S", start_s)
    answers.given["POST", f"/{PODS}"] = [(201, pod("reader-x1", "Pending"))]
    answers.get(f"{PODS}/reader-x1", {**pod("reader-x1"), "status": status})
    answers.refuse("DELETE", f"{PODS}/reader-x1", 404, refusal(404, "gone"))
    with pytest.raises(NotPossibleError) as error, cluster.running(pod("reader")):
        pass
    assert str(error.value) == f"pod ml/reader-x1 does not run: {why}"
    assert answers.asked[-1].method == "DELETE"


@pytest.mark.parametrize(("context", "namespace"), [(None, "ml"), ("here", "ml"), ("there", "default")])
def test_the_context_names_the_cluster_and_the_namespace(tmp_path: Path, context: str | None, namespace: str):
    assert connect(kubeconfig(tmp_path, "http://127.0.0.1:9"), context).namespace == namespace


def test_a_context_that_is_not_there_leads_to_the_nearest(tmp_path: Path):
    with pytest.raises(ClusterError) as error:
        connect(kubeconfig(tmp_path, "http://127.0.0.1:9"), "theer")
    assert said(error)[1:] == (Exit.SETUP, 'the kubeconfig has no context "theer"; nearest: there')


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool):
    absent = tmp_path / "absent"
    if by_variable:
        monkeypatch.setenv("KUBECONFIG", str(absent))
    with pytest.raises(ClusterError) as error:
        connect(None if by_variable else absent, None)
    assert error.value.exit is Exit.SETUP
    said = f"no cluster is configured: kubeconfig {absent}: there is no such file; set KUBECONFIG, or give --kubeconfig"
    assert str(error.value) == said


def test_why_reads_the_pods_of_the_job_and_the_events_of_those_that_are_stuck(cluster: Cluster, answers: Answers):
    job = named("sums")
    waits = {**pod("sums-7f3a1-1-head", "Pending"), "status": {"phase": "Pending"}}
    waits["metadata"]["labels"] = {"ray.io/cluster": job["status"]["attempts"][-1]["cluster"]}
    event = {"reason": "FailedMount", "message": "no volume", "lastTimestamp": "2026-11-21T12:00:00Z", "metadata": {}}
    answers.get(f"{OF_ML}/sums", job)
    answers.get("apis/ray.io/v1/namespaces/ml/rayclusters", page())
    answers.get(PODS, page(waits))
    answers.get("api/v1/namespaces/ml/events", page(event))
    found, why = explain(cluster, "ml", "sums")
    asked = {each.path.rpartition("/")[2]: each.query for each in answers.asked}
    assert found.key == "ml/sums"
    assert asked["events"]["fieldSelector"] == "involvedObject.kind=Pod,involvedObject.name=sums-7f3a1-1-head"
    assert asked["pods"]["labelSelector"] == asked["rayclusters"]["labelSelector"] == "rljob.dev/job=sums"
    assert ("event", "sums-7f3a1-1-head: FailedMount: no volume") in why.evidence
    assert "resourcequotas" not in asked, "its pods are there"


def test_what_is_not_there_says_so_in_the_words_of_the_api_server(cluster: Cluster, answers: Answers):
    answers.refuse("GET", "api/v1/namespaces/ml/secrets/x", 404, refusal(404, 'secrets "x" not found'))
    with pytest.raises(NoObjectError) as error:
        cluster.secret("ml", "x")
    assert said(error) == (NoObjectError, Exit.NOT_FOUND, 'secrets "x" not found')
