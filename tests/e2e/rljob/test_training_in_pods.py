"""A manifest trains in pods that KubeRay made: real kubelet, containers, network, Ray, Megatron, SGLang and router."""

from pathlib import Path
from typing import Any

import pytest

from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.project import NAMESPACE, RELEASE, Workspace
from support.operator.helm_release import rendered
from support.operator.job_in_pods import DATA, JobInPods
from support.operator.prometheus_server import Query, Target, queries, running, scrape_config, targets_of
from support.trainer.whole_run import HELD_OUT, PROMPTS_PER_STEP, expected_journal, uids, without_commits

pytestmark = pytest.mark.timeout(1800)

QUEUED = "rljob_operator_job_queued_timestamp_seconds"
KILL_ENGINE = """python -c "
import psutil
servers = [process for process in psutil.process_iter() if process.name().startswith('sglang::sched')]
min(servers, key=lambda process: process.create_time()).kill()
"
"""


def scrape_configs(job: JobInPods) -> list[dict[str, Any]]:
    """Return what the PodMonitors of operator and jobs make of the pods that there are.

    Their NetworkPolicies let in namespaces, and this Prometheus is no pod: policies of its own let it in.
    """
    chart = rendered("--set=monitoring.podMonitors.enabled=true", release=RELEASE)
    monitors = [chart[f"PodMonitor/{RELEASE}-{name}"] for name in ("operator", "operator-jobs")]
    pods = [*job.kubectl.get("pods", "-n", NAMESPACE)["items"], *job.pods()]
    found = [(monitor, targets_of(monitor, pods)) for monitor in monitors]
    (_, operators), (_, heads) = found
    assert operators and len(heads) == 1, "replicas of the operator, and the job's head"
    for monitor, targets in found:
        job.kubectl.apply(open_to_the_host(monitor, targets[0]))
    return [scrape_config(monitor, targets) for monitor, targets in found]


def open_to_the_host(monitor: Manifest, target: Target) -> Manifest:
    """Return the policy that opens the port of a PodMonitor's pods."""
    port = {"port": int(target.address.rpartition(":")[2]), "protocol": "TCP"}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "prometheus-of-the-host", "namespace": target.namespace},
        "spec": {
            "podSelector": monitor["spec"]["selector"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [port]}],
        },
    }


def asked_of_one_job() -> list[Query]:
    """Return all queries but those about GPUs or jobs that wait, and those of alerts about jobs in other phases."""
    return [
        query
        for query in queries()
        if QUEUED not in query.text
        and not query.is_about_gpus
        and not (query.where.startswith("alert ") and 'phase="' in query.text)
    ]


def test_a_key_that_the_questions_lack_ends_the_first_attempt_before_it_starts(
    kubectl: Kubectl, place: Workspace
) -> None:
    job = JobInPods(kubectl, place, data={"labelKey": "result"})
    kubectl("wait", "--for=condition=Failed", f"rljob/{job.name}", "-n", place.namespace, "--timeout=900s")
    (failed,) = [each for each in job.status["conditions"] if each["type"] == "Failed"]
    assert failed["reason"] == "BadInput"
    assert "no key `result` (data.labelKey)" in failed["message"]
    assert "; DataKeyMissing: " in failed["message"]
    assert job.attempts[0]["failure"]["code"] == "DataKeyMissing"
    assert "no key `result`" in job.attempts[0]["failure"]["evidence"]
    assert job.status["attempt"] == 1


def test_a_job_in_three_kinds_of_pods_goes_on_while_an_engine_restarts_and_prometheus_sees_it(
    kubectl: Kubectl, place: Workspace, prometheus: Path, tmp_path: Path
) -> None:
    job = JobInPods(
        kubectl,
        place,
        data={"evaluationSets": [{"name": "few", "jsonl": str(DATA / "questions.jsonl"), "limit": HELD_OUT // 2}]},
        placement="Disaggregated",
        algorithm={"kl": {"coefficient": 0.001}},
        rollout={"engines": 2},
        training={"steps": 60},
    )
    job.until(lambda: job.step >= 2)
    assert len(job.pods()) == 4, "head, trainer, and one for each engine"
    assert {pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] for pod in job.pods()} == {True}
    with running(prometheus, tmp_path / "prometheus", scrape_configs(job)) as server:
        server.until_scraped("rljob_step")
        job.inside(job.pods_of("rollout")[0], KILL_ENGINE)
        job.succeed()
        at = server.last_scrape("rljob_step")
        assert server.silent(asked_of_one_job(), at, namespace=place.namespace, rljob=job.name) == []
    assert job.status["attempt"] == 1
    assert [done["action"] for done in job.status["recovery"]] == ["RestartEngine"]
    assert job.journal == expected_journal(60, PROMPTS_PER_STEP, 2, uids())
    assert job.checkpoints()[-1] == "iter_0000060"
    job.until(lambda: job.pods() == [])


def test_a_learner_over_two_pods_trains_while_an_engine_comes_and_goes(kubectl: Kubectl, place: Workspace) -> None:
    asked = {"requests": {"cpu": "50m", "memory": "256Mi"}}
    job = JobInPods(
        kubectl,
        place,
        placement="Disaggregated",
        training={"nodes": 2, "tensorParallel": 2, "steps": 2000},
        checkpoint={"interval": 10_000},
        runtime={"headResources": asked, "workerResources": asked},
    )
    job.until(lambda: job.step >= 2)
    assert [len(job.pods_of(group)) for group in ("trainer", "rollout")] == [2, 1]
    assert {pod["status"]["qosClass"] for pod in job.pods()} == {"Burstable"}

    kubectl("scale", f"rljob/{job.name}", "--replicas=2", "-n", place.namespace)
    job.until(lambda: job.status["engines"]["ready"] == 2)
    assert len(job.pods_of("rollout")) == 2
    job.goes_on()
    kubectl("scale", f"rljob/{job.name}", "--replicas=1", "-n", place.namespace)
    job.until(lambda: len(job.pods_of("rollout")) == 1)
    job.goes_on()
    assert job.status["attempt"] == 1
    assert job.status.get("recovery", []) == []

    job.change({"suspend": True})
    job.until(lambda: job.phase == "Suspended")
    done = job.journal[-1]["step"]
    assert job.journal == expected_journal(done, PROMPTS_PER_STEP, 10_000, uids(epochs=200))


def test_a_job_that_loses_pods_and_is_suspended_goes_on_from_its_checkpoint_and_loses_no_prompt(
    kubectl: Kubectl, place: Workspace
) -> None:
    job = JobInPods(kubectl, place, training={"steps": 60}, checkpoint={"interval": 100})
    job.until(lambda: job.step >= 3)
    job.evict(job.pods_of("workers")[0])
    job.until(lambda: job.attempts[0].get("exitCode") == 7)
    job.until(lambda: job.status["attempt"] == 2 and job.phase == "Training")
    assert "is being evicted" in job.attempts[0]["reason"]
    assert job.attempts[0]["cluster"] != job.attempts[1]["cluster"]
    (evicted_at,) = job.commits
    assert job.attempts[1]["checkpointStep"] == evicted_at >= 3
    assert job.status.get("recovery", []) == [], "an eviction is no failure"

    job.change({"suspend": True})
    job.until(lambda: job.phase == "Suspended")
    job.until(lambda: job.pods() == [])
    suspended_at = int(job.checkpoints()[-1].removeprefix("iter_"))
    job.change({"suspend": False})

    job.until(lambda: job.phase == "Training" and job.step > suspended_at)
    attempt = job.status["attempt"]
    kubectl("delete", "pod", job.pods_of("workers")[0], "-n", place.namespace, "--grace-period=0", "--force")
    job.succeed()
    assert job.status["attempt"] > attempt
    # The operator may see the loss before the learner does: then the learner saves once more before it leaves.
    assert job.commits[:2] == [evicted_at, suspended_at] and job.commits[-1] == 60
    assert len(job.commits) <= 4
    due = expected_journal(60, PROMPTS_PER_STEP, 100, uids())
    assert without_commits(job.journal) == without_commits(due)
