"""`rljob status`, `top`, `logs` and `plot`, under a user's kubeconfig, on what the real operator writes.

The drivers are fakes, and simulated pods run nothing: exec into them fails, as it does where a user may not.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_cluster import home
from local_cluster.api_server import start_api_server
from local_cluster.kubectl import Kubectl
from rljob_api.control import EngineState, RunState
from rljob_api.exits import Exit
from support.cli.command import Ended, environment, on_terminal, rljob, started
from support.operator.fake_head import FakeHeads, serving
from support.operator.operator_process import kubeconfig_of
from support.waiting import eventually

As = Callable[..., Ended]


@pytest.fixture
def user(kubectl: Kubectl, namespace: str, kubeconfig: Path, tmp_path: Path) -> Callable[[str | None], Path]:
    """Make a user with one of the cluster's own roles in the namespace, or with none; returns its kubeconfig."""

    def made(role: str | None) -> Path:
        account = f"user-{role or 'nobody'}"
        kubectl("create", "serviceaccount", account, "-n", namespace)
        found = kubeconfig_of(kubectl, namespace, account, tmp_path)
        if role is not None:
            whose = f"--serviceaccount={namespace}:{account}"
            kubectl("create", "rolebinding", account, f"--clusterrole={role}", whose, "-n", namespace)
            # The rights of our roles reach the cluster's own ones through a controller.
            eventually(lambda: rljob("status", kubeconfig=found).code, lambda code: code == Exit.OK)
        return found

    return made


@pytest.fixture
def viewer(user: Callable[[str], Path]) -> Path:
    """A kubeconfig of somebody who may only look."""
    return user("view")


def phase_of(job) -> Callable[[], str]:
    return lambda: job.raw().get("status", {}).get("phase", "")


def test_the_page_of_a_job_that_trains(new_job, start, viewer: Path) -> None:
    start()
    job = new_job()
    job.until("Training")
    page = rljob("status", "sums", kubeconfig=viewer)
    assert (page.code, page.err) == (Exit.OK, "")
    assert page.out.startswith(f"{job.namespace}/sums  Training for ")
    assert "\nattempt 1 trains\n" in page.out
    for text in (
        "\nstep      3/10  30%  eta 45s\n",
        "\nreward    0.15 → 0.25  ",
        "\ntokens/s  rollout 21.2k   train 60.0k\n",
        "\na step    6.5s: rollout 3.9s  train 2.2s  publish 0.3s\n",
        "\nengines   2 of 2 ready\n",
        " weights 3\n",
        f": rljob logs sums -n {job.namespace} -f\n",
    ):
        assert text in page.out
    assert "\x1b" not in page.out


def test_a_job_that_was_not_admitted_says_what_is_wrong_and_what_to_do(new_job, start, viewer: Path) -> None:
    start()
    job = new_job(checkpoint={"directory": "/not/shared"})
    job.until("Admitted", "False")
    page = rljob("status", "sums", kubeconfig=viewer).out
    assert "sums  Invalid for " in page
    assert "/not/shared lies in no volume of spec.runtime.volumeMounts" in page
    assert "fix the manifest and apply it again: rljob validate FILE" in page


def test_a_job_whose_pods_find_no_node_shows_the_scheduler_s_words(new_job, start, viewer: Path) -> None:
    start()
    job = new_job(scheduling={"nodeSelector": {"no": "node"}})
    eventually(lambda: job.raw().get("status", {}), lambda status: "didn't match" in json.dumps(status))
    page = rljob("status", "sums", kubeconfig=viewer).out
    assert "sums  Provisioning for " in page
    assert "0 of 3 pods are ready; " in page
    assert "node(s) didn't match" in page


def test_the_doctor_finds_why_pods_find_no_node(new_job, start, viewer: Path) -> None:
    start()
    job = new_job(scheduling={"nodeSelector": {"no": "node"}})
    eventually(lambda: job.raw().get("status", {}), lambda status: "didn't match" in json.dumps(status))
    said = rljob("doctor", "sums", "-o", "json", kubeconfig=viewer)
    value = json.loads(said.out)
    first = value["failures"][0]
    assert (said.code, first["code"], first["evidence"][0]["log"]) == (Exit.OK, "PodUnschedulableTaint", "status")
    assert len(value["notes"]) == 1
    assert "has no running head pod" in value["notes"][0]


def test_a_job_whose_driver_starts(new_job, start, heads: FakeHeads, viewer: Path) -> None:
    start()
    job = new_job()
    job.until("ClusterReady")
    eventually(lambda: heads.submissions, bool)
    heads.head(job.namespace).change(state=RunState.STARTING)
    eventually(phase_of(job), lambda phase: phase == "Starting")
    page = rljob("status", "sums", kubeconfig=viewer).out
    assert "sums  Starting for " in page
    assert "\nattempt 1 starts\n" in page


def test_a_job_that_recovers_says_what_failed_and_what_was_done(new_job, start, heads: FakeHeads, viewer: Path) -> None:
    operator = start()
    job = new_job()
    job.until("Training")
    heads.begins_as = RunState.STARTING
    heads.head(job.namespace).end(5)
    eventually(lambda: job.raw()["status"].get("recovery"), bool)
    eventually(lambda: len(heads.submissions), lambda number: number == 2)
    assert phase_of(job)() == "Recovering"
    operator.kill()
    page = rljob("status", "sums", kubeconfig=viewer).out
    assert "sums  Recovering for " in page
    assert " ago with 5: a required process is gone" in page
    assert "attempt 2 started on the same pods: a required process is gone" in page
    assert "nothing: the operator recovers it" in page
    assert "--attempt 1 --tail 50" in page


def test_an_engine_in_trouble_stands_on_the_page_and_in_top(new_job, start, heads: FakeHeads, viewer: Path) -> None:
    start()
    job = new_job()
    job.until("EnginesReady")
    head = heads.head(job.namespace)
    first, second = head.status.engines
    stale = {"state": EngineState.STALE, "version": 1, "restarts": 2, "last_error": "killed by SIGKILL"}
    head.change(engines=(first.model_copy(update=stale), second))
    job.until("EnginesReady", "False")
    assert "engine-0  Stale" in rljob("status", "sums", kubeconfig=viewer).out
    top = rljob("top", kubeconfig=viewer).out
    assert "1 job not ended, 4 GPUs in use, 1 of 2 engines ready, rollout 21.2k tokens/s" in top
    (row,) = [line.split() for line in top.splitlines() if " engine-0 " in line]
    assert (row[2], row[4:7], row[7:]) == ("Stale", ["1", "2", "2"], ["killed", "by", "SIGKILL"])


def test_on_a_terminal_top_goes_on_until_it_is_interrupted(new_job, start, viewer: Path) -> None:
    start()
    new_job().until("EnginesReady")
    top = on_terminal("top", kubeconfig=viewer, until="engine-1")
    assert (top.code, "Traceback" in top.out) == (Exit.OK, False)
    assert "\x1b[32mTraining" in top.out


def test_a_suspended_job_says_how_to_resume(new_job, start, viewer: Path) -> None:
    start()
    job = new_job()
    job.until("Training")
    job.patch('{"suspend":true}')
    eventually(phase_of(job), lambda phase: phase == "Suspended")
    page = rljob("status", "sums", kubeconfig=viewer).out
    assert "sums  Suspended for " in page
    assert f"kubectl patch rljob sums -n {job.namespace} --type=merge" in page


def test_a_job_that_has_failed_says_why_and_where_the_log_lies(new_job, start, heads: FakeHeads, user) -> None:
    start()
    job = new_job()
    job.until("Training")
    heads.head(job.namespace).end(9)
    job.until("Failed")
    editor = user("edit")
    page = rljob("status", "sums", kubeconfig=editor).out
    assert "sums  Failed for " in page
    assert "fix the files that the message names" in page
    eventually(job.pods, lambda pods: not pods)
    log = rljob("logs", "sums", kubeconfig=editor)
    assert (log.code, log.out) == (Exit.NOT_FOUND, "")
    assert "has failed and its pods are deleted" in log.err
    assert "/logs/driver-attempt-1.log on the volume" in log.err


def test_a_failed_job_is_resumed_in_place_by_those_who_may_change_it(
    new_job, start, heads: FakeHeads, user: Callable[[str], Path]
) -> None:
    start()
    job = new_job()
    job.until("Training")
    editor, viewer = user("edit"), user("view")
    early = rljob("resume", "sums", kubeconfig=editor)
    assert (early.code, early.err) == (Exit.USAGE, "sums is Training, and only a Failed job can be resumed\n")
    heads.head(job.namespace).end(9)
    job.until("Failed")
    refused = rljob("resume", "sums", kubeconfig=viewer)
    assert refused.code == Exit.FORBIDDEN
    assert "no permission to patch rljobs" in refused.err
    resumed = rljob("resume", "sums", kubeconfig=editor)
    assert resumed.code == Exit.OK
    assert resumed.out.startswith("sums resumes with attempt 2, from step ")
    eventually(job.raw, lambda raw: raw["status"]["attempt"] == 2)
    assert job.raw()["spec"]["recovery"]["resumes"] == 1


def test_the_curve_is_still_there_when_the_job_has_ended(
    new_job, start, heads: FakeHeads, viewer: Path, tmp_path: Path
) -> None:
    start()
    job = new_job()
    job.until("Training")
    heads.head(job.namespace).end(0)
    job.until("Succeeded")
    eventually(job.pods, lambda pods: not pods)
    chart = rljob("plot", "sums", kubeconfig=viewer)
    assert chart.code == Exit.OK
    assert f"{job.namespace}/sums  step 3/10, Succeeded\n\nmean reward  0.15 → 0.25, steps 1 to 3\n" in chart.out
    assert "held-out accuracy  0.1, steps 0 to 0" in chart.out
    points = json.loads(rljob("plot", "sums", "-o", "json", kubeconfig=viewer).out)["points"]
    assert [(point["step"], point["reward"]) for point in points] == [(0, None), (1, 0.15), (2, 0.2), (3, 0.25)]
    assert rljob("plot", "sums", "-o", "svg", kubeconfig=viewer).out.count("<polyline") == 1


def test_the_table_has_a_row_for_each_job_and_json_has_what_it_has(new_job, start, viewer: Path) -> None:
    start()
    new_job("later", scheduling={"nodeSelector": {"no": "node"}})
    new_job().until("Training")
    head, later, sums = [line.split() for line in rljob("status", kubeconfig=viewer).out.splitlines()]
    assert head == ["NAME", "PHASE", "STEP", "REWARD", "HELD-OUT", "ENGINES", "GPUS", "AGE", "ETA"]
    assert (later[:2], sums[:7]) == (
        ["later", "Provisioning"],
        ["sums", "Training", "3/10", "0.25", "0.10", "2/2", "4"],
    )
    jobs = json.loads(rljob("status", "-o", "json", kubeconfig=viewer).out)["jobs"]
    assert [(job["name"], job["step"], job["engines_ready"]) for job in jobs] == [("later", 0, 0), ("sums", 3, 2)]
    assert json.loads(rljob("status", "sums", "-o", "json", kubeconfig=viewer).out)["step_seconds"]["train"] == 2.2


def test_watching_a_job_ends_with_it(new_job, start, heads: FakeHeads, viewer: Path) -> None:
    start()
    job = new_job()
    job.until("Training")
    watch = started("status", "sums", "--watch", kubeconfig=viewer)
    assert watch.stdout is not None
    assert watch.stdout.readline().startswith(f"{job.namespace}/sums  Training  step 3/10  reward 0.25")
    heads.head(job.namespace).end(0)
    out, err = watch.communicate(timeout=60)
    assert (watch.returncode, err) == (Exit.OK, "")
    assert out.splitlines()[-1].startswith(f"{job.namespace}/sums  Succeeded  step 3/10")


def test_the_driver_s_log_comes_through_the_api_server_where_exec_does_not_work(
    kubectl: Kubectl, new_job, start, heads: FakeHeads, user
) -> None:
    operator = start()
    job = new_job()
    job.until("Training")
    operator.kill()
    with reachable(kubectl, job, heads):
        editor = user("edit")
        log = rljob("logs", "sums", kubeconfig=editor)
        (name,) = heads.submissions
        assert (log.code, log.err, log.out) == (Exit.OK, "", f"{name} starts\n{name} trains\n")
        assert rljob("logs", "sums", "--tail", "1", kubeconfig=editor).out == f"{name} trains\n"
        engine = rljob("logs", "sums", "--engine", "engine-0", kubeconfig=editor)
        assert (engine.code, engine.out) == (Exit.UNREACHABLE, "")
        assert "there is no other way to read an engine's log" in engine.err


@contextmanager
def reachable(kubectl: Kubectl, job, heads: FakeHeads) -> Iterator[None]:
    """Let the Service of the job lead to the fake heads on an address of this machine: the API server dials no
    loopback addresses, and only those of pods."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        address = probe.getsockname()[0]
    (head,) = [pod for pod in job.pods() if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
    service = next(c.partition("/")[2] for c in job.children() if c.startswith("Service/") and c.endswith("-driver"))
    with serving(heads, address) as url:
        port = int(url.split(":")[2].partition("/")[0])
        ip = json.dumps({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
        kubectl(
            "patch",
            "pod",
            head["metadata"]["name"],
            "-n",
            job.namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            ip,
        )
        ports = json.dumps([{"op": "replace", "path": "/spec/ports/0/targetPort", "value": port}])
        kubectl("patch", "service", service, "-n", job.namespace, "--type=json", "-p", ports)
        slices = ("endpointslices", "-n", job.namespace, "-l", f"kubernetes.io/service-name={service}")
        eventually(lambda: json.dumps(kubectl.get(*slices)), lambda text: address in text and f'"port": {port}' in text)
        yield


@pytest.mark.parametrize(
    ("role", "arguments", "code", "message"),
    [
        ("view", ("status", "sun"), Exit.NOT_FOUND, 'there is no RLJob "sun" in namespace {}; nearest: sums'),
        (
            "view",
            ("plot", "sums", "-n", "elsewhere"),
            Exit.FORBIDDEN,
            "no permission to get rljobs in namespace elsewhere",
        ),
        ("view", ("top", "-A"), Exit.FORBIDDEN, "no permission to list rljobs in all namespaces"),
        (None, ("status",), Exit.FORBIDDEN, "no permission to list rljobs in namespace {}"),
        ("view", ("status", "--context", "user-vew"), Exit.SETUP, 'has no context "user-vew"; nearest: user-view'),
        ("view", ("status", "--kubeconfig", "/nonexistent"), Exit.SETUP, "no cluster is configured"),
        ("view", ("logs", "sums"), Exit.NOT_FOUND, "{}/sums has no driver yet: no operator has seen it yet"),
    ],
)
def test_what_a_user_lacks_or_mistypes_has_a_message_and_a_code(
    new_job, user, role: str | None, arguments: tuple[str, ...], code: Exit, message: str
) -> None:
    job = new_job()
    said = rljob(*arguments, kubeconfig=user(role))
    assert (said.code, said.out) == (code, "")
    assert message.format(job.namespace) in said.err
    assert "Traceback" not in said.err


def test_logs_say_which_right_is_missing_and_what_there_is(new_job, start, viewer: Path) -> None:
    start()
    new_job().until("EnginesReady")
    refused = rljob("logs", "sums", kubeconfig=viewer)
    assert (refused.code, refused.out) == (Exit.FORBIDDEN, "")
    assert "no permission to create pods/exec" in refused.err
    assert "no permission to get services/proxy" in refused.err
    assert "nearest: engine-" in rljob("logs", "sums", "--engine", "engine-7", kubeconfig=viewer).err
    assert "has no attempt 7; there is 1" in rljob("logs", "sums", "--attempt", "7", kubeconfig=viewer).err


def test_a_cluster_that_is_not_there_is_reported_with_its_address(viewer: Path, tmp_path: Path) -> None:
    config = json.loads(viewer.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "lost.kubeconfig"
    path.write_text(json.dumps(config))
    said = rljob("top", kubeconfig=path)
    assert said.code == Exit.UNREACHABLE
    assert said.err.startswith("the cluster at https://127.0.0.1:1 does not answer: ")
    assert "Connection refused" in said.err


@pytest.fixture
def bare() -> Iterator[Path]:
    """A kubeconfig of an API server that has no RLJobs."""
    with home.owned_directory(home.clusters_of_this_user()) as directory:
        yield start_api_server(directory, os.environ).kubeconfig


def test_a_cluster_without_rljob_is_reported_what_is_missing(bare: Path) -> None:
    said = [rljob(*arguments, kubeconfig=bare) for arguments in (("status",), ("status", "sums"), ("plot", "sums"))]
    assert [each.code for each in said] == [Exit.SETUP] * 3
    assert all("CRD rljobs.rljob.dev is absent; install rljob there" in each.err for each in said)


def test_kubectl_finds_the_plugin_and_completes_its_words(
    kubectl: Kubectl, new_job, start, viewer: Path, namespace: str
) -> None:
    start()
    new_job().until("Training")
    programs = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin"

    def plugin(*arguments: str) -> Ended:
        done = subprocess.run(
            [str(kubectl.program), *arguments],
            env={**environment(viewer), "PATH": programs},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    assert plugin("rljob", "status", "sums").out.startswith(f"{namespace}/sums  Training")
    assert plugin("rljob", "status", "--help").out.startswith("Usage: kubectl rljob status ")
    assert plugin("rljob", "status", "sun").code == Exit.NOT_FOUND
    assert plugin("__complete", "rljob", "status", "s").out.splitlines() == ["sums", ":4"]
    assert plugin("__complete", "rljob", "to").out.splitlines() == ["top", ":4"]


def test_the_roles_add_to_view_only_what_looks(kubectl: Kubectl, viewer: Path, user, namespace: str) -> None:
    def may(kubeconfig: Path, verb: str, what: str) -> bool:
        asked = Kubectl(kubectl.program, kubeconfig)("auth", "can-i", "--list", "-n", namespace)
        rows = [line for line in asked.splitlines() if line.startswith(f"{what} ")]
        return any(verb in row for row in rows)

    editor = user("edit")
    assert [may(viewer, verb, "rljobs.rljob.dev") for verb in ("get", "list", "watch")] == [True] * 3
    assert [may(viewer, verb, "rljobs.rljob.dev") for verb in ("create", "patch", "delete")] == [False] * 3
    assert [may(editor, verb, "rljobs.rljob.dev") for verb in ("get", "create", "patch", "delete")] == [True] * 4


def claim(kubectl: Kubectl, namespace: str) -> dict:
    """Make a claim that is bound, and return the volume source for it."""
    kind = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"runs-{namespace}"},
        "spec": {
            **kind,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/runs"},
            "claimRef": {"name": "runs", "namespace": namespace},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "runs", "namespace": namespace},
        "spec": {**kind, "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl.apply(volume, claim)
    return {"persistentVolumeClaim": {"claimName": "runs"}}


def test_a_pod_reads_the_log_of_a_job_without_pods_and_is_deleted_again(
    kubectl: Kubectl, namespace: str, new_job, start, heads: FakeHeads, user
) -> None:
    start(more=("--storage", json.dumps(claim(kubectl, namespace))))
    job = new_job()
    job.until("Training")
    heads.head(namespace).end(9)
    job.until("Failed")
    eventually(job.pods, lambda pods: not pods)
    log = rljob("logs", "sums", kubeconfig=user("edit"))
    # A simulated pod runs, and no command runs in it.
    assert "has no pods; starting one that reads its volume" in log.err
    assert "on the volume of the job; cannot run a command in pod" in log.err
    left = kubectl.get("pods", "-n", namespace, "-l", "app.kubernetes.io/managed-by=rljob-logs")["items"]
    assert left == []
    kubectl("delete", "pv", f"runs-{namespace}", "--wait=false")
