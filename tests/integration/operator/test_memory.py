"""What an operator keeps of a job: over changed chart values, refusals, and a lost status."""

import json
from collections.abc import Callable

from local_cluster.kubectl import Kubectl, Manifest
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.operator.operator_process import OperatorProcess
from support.waiting import eventually

OTHER_DEFAULTS = ("--image=rljob/trainer:next", '--storage={"hostPath": {"path": "/new"}}', "--storage-path=/new")
NO_DEFAULTS = ("--image=", "--storage={}")


def clusters(kubectl: Kubectl, job: Job) -> list[Manifest]:
    found: list[Manifest] = kubectl.get("raycluster", "-n", job.namespace)["items"]
    return found


def images(kubectl: Kubectl, job: Job) -> set[str]:
    groups = [
        group
        for cluster in clusters(kubectl, job)
        for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"])
    ]
    return {group["template"]["spec"]["containers"][0]["image"] for group in groups}


def until_reconciled(kubectl: Kubectl, job: Job) -> None:
    """Wait until an operator has looked at the job and carried out its plan."""
    kubectl("delete", "networkpolicy", "--all", "-n", job.namespace)
    eventually(lambda: kubectl.names("networkpolicy", "-n", job.namespace), lambda names: len(names) == 1)


def replaced(start: Callable[..., OperatorProcess], old: OperatorProcess, more: tuple[str, ...]) -> OperatorProcess:
    assert old.terminate() == 0
    return start("next", more=more)


def test_changed_chart_values_reach_no_job_that_has_begun(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    operator, job = start(), new_job()
    resolved = job.until("Training")["resolved"]
    replaced(start, operator, OTHER_DEFAULTS)
    until_reconciled(kubectl, job)
    assert images(kubectl, job) == {"rljob/trainer:test"}
    heads.head(job.namespace).end(5)
    eventually(lambda: len(heads.submissions), lambda count: count == 2)
    status = job.until("Training")
    assert images(kubectl, job) == {"rljob/trainer:test"}
    assert status["resolved"] == resolved
    assert status["directory"] == resolved["directory"]


def test_a_job_that_has_begun_is_followed_to_its_end_without_the_defaults_that_it_was_admitted_with(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    operator, job = start(), new_job()
    job.until("Training")
    last = replaced(start, operator, NO_DEFAULTS)
    until_reconciled(kubectl, job)
    refused = new_job("late")
    refused.until("Admitted", "False")
    heads.head(job.namespace).end(0)
    job.until("Succeeded")
    eventually(job.pods, lambda pods: not pods)
    ended = job.raw()["status"]
    last.terminate()
    start("again", more=NO_DEFAULTS)
    new_job("later").until("Admitted", "False")
    assert job.raw()["status"] == ended


def test_a_lost_status_is_rebuilt_and_the_live_cluster_is_adopted(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    operator, job = start(), new_job()
    job.until("Training")
    heads.head(job.namespace).end(5)
    eventually(lambda: len(heads.submissions), lambda count: count == 2)
    job.until("Training")
    before = [cluster["metadata"]["uid"] for cluster in clusters(kubectl, job)]
    operator.terminate()
    lost = ("--subresource=status", "--type=merge", "-p", '{"status":null}')
    kubectl("patch", "rljob", job.name, "-n", job.namespace, *lost)
    assert "attempt" not in job.raw()["status"] or job.raw()["status"]["attempt"] == 0
    start("next")
    status = job.until("Training")
    assert status["attempt"] == 2
    assert [cluster["metadata"]["uid"] for cluster in clusters(kubectl, job)] == before
    assert len(heads.submissions) == 2
    assert "StatusRebuilt" in job.events()


def test_a_job_that_is_applied_again_has_the_directory_of_its_name_and_may_also_name_it(
    kubectl: Kubectl, new_job: Callable, start: Callable
) -> None:
    start()
    job = new_job()
    job.until("ClusterReady")
    first = job.raw()
    job.delete()
    eventually(lambda: kubectl.names("rljob", "-n", job.namespace), lambda names: not names)
    eventually(job.pods, lambda pods: not pods)
    again = new_job(checkpoint={"directory": first["status"]["directory"]})
    again.until("ClusterReady")
    assert again.raw()["metadata"]["uid"] != first["metadata"]["uid"]
    assert again.raw()["status"]["resolved"] == first["status"]["resolved"]


def test_a_secret_that_is_deleted_while_no_operator_runs_disturbs_no_run(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    operator, job = start(), new_job()
    job.until("Training")
    before = heads.head(job.namespace).tokens
    operator.terminate()
    kubectl("delete", "secret", "-n", job.namespace, "-l", f"rljob.dev/job={job.name}")
    start("next")
    head = heads.head(job.namespace)
    head.change(progress=head.status.progress.model_copy(update={"step": 4}))
    eventually(lambda: job.raw()["status"]["progress"]["step"], lambda step: step == 4, deadline_s=60)
    assert heads.head(job.namespace).tokens == before
    assert job.raw()["status"]["attempt"] == 1


def test_a_secret_that_is_deleted_is_made_again_with_the_same_token_when_a_pod_waits_for_it(
    kubectl: Kubectl, new_job: Callable, start: Callable
) -> None:
    start()
    job = new_job(scheduling={"nodeSelector": {"no": "such-node"}})
    eventually(job.pods, bool)
    (name,) = kubectl.names("secret", "-n", job.namespace, "-l", f"rljob.dev/job={job.name}")
    token = kubectl.get("secret", name, "-n", job.namespace)["data"]["token"]
    kubectl("delete", "secret", name, "-n", job.namespace)
    waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}
    container = {"name": "ray-head", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    status = {
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{**container, "state": {"waiting": waiting}}],
    }
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    kubectl("patch", "pod", job.pods()[0]["metadata"]["name"], "-n", job.namespace, *patch)
    eventually(
        lambda: kubectl.names("secret", "-n", job.namespace, "-l", f"rljob.dev/job={job.name}"), bool, deadline_s=90
    )
    assert kubectl.get("secret", name, "-n", job.namespace)["data"]["token"] == token


def test_two_jobs_with_one_directory_run_one_after_the_other(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    start(more=('--storage={"csi": {"driver": "runs.example.com"}}',))
    first = new_job("first")
    directory = first.until("Training")["directory"]
    second = new_job("second", checkpoint={"directory": directory})
    second.until("Admitted")
    ready = next(each for each in second.raw()["status"]["conditions"] if each["type"] == "Ready")
    assert ready["reason"] == "DirectoryInUse"
    assert f"{directory} belongs to RLJob first" in ready["message"]
    assert second.children() == set()
    first.patch('{"suspend":true}')
    eventually(lambda: first.raw()["status"]["phase"], lambda phase: phase == "Suspended", 60, poll_s=0.5)
    assert second.children() == set()
    first.delete()
    second.until("Training")
    assert [cluster["metadata"]["labels"]["rljob.dev/job"] for cluster in clusters(kubectl, second)] == ["second"]
    assert len(heads.submissions) == 2
