"""A manifest trains in pods that KubeRay made: real kubelet, containers, network, Ray, Megatron, SGLang and router."""

import pytest

from job_in_pods import JobInPods
from local_cluster.kubectl import Kubectl
from local_cluster.project import Workspace
from whole_run import PROMPTS_PER_STEP, expected_journal, uids

pytestmark = pytest.mark.timeout(900)

KILL_ENGINE = """python -c "
import psutil
servers = [process for process in psutil.process_iter() if process.name().startswith('sglang::sched')]
min(servers, key=lambda process: process.create_time()).kill()
"
"""


def test_a_job_trains_and_frees_its_pods(kubectl: Kubectl, place: Workspace) -> None:
    job = JobInPods(kubectl, place)
    job.until(lambda: job.phase == "Training")
    assert {pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] for pod in job.pods()} == {True}
    kubectl("wait", "--for=condition=Succeeded", f"rljob/{job.name}", "-n", place.namespace, "--timeout=300s")

    assert job.journal == expected_journal(6, PROMPTS_PER_STEP, 2, uids())
    assert job.checkpoints()[-1] == "iter_0000006"
    status = job.status
    assert status["progress"]["step"] == 6
    assert status["attempt"] == 1
    job.until(lambda: job.pods() == [])


def test_learner_and_engine_in_pods_of_their_own_share_weights_over_the_network(
    kubectl: Kubectl, place: Workspace
) -> None:
    job = JobInPods(kubectl, place, placement="Disaggregated")
    job.until(lambda: job.phase == "Training")
    assert len(job.pods()) == 3, "head, trainer, rollout"
    job.succeed()
    assert job.journal == expected_journal(6, PROMPTS_PER_STEP, 2, uids())


def test_a_lost_worker_pod_costs_an_attempt_and_no_prompt(kubectl: Kubectl, place: Workspace) -> None:
    job = JobInPods(kubectl, place, training={"steps": 40}, checkpoint={"interval": 5})
    job.until(lambda: job.step >= 6)
    kubectl("delete", "pod", job.pods_of("workers")[0], "-n", place.namespace, "--grace-period=0", "--force")
    job.succeed()
    assert job.status["attempt"] >= 2
    assert job.journal == expected_journal(40, PROMPTS_PER_STEP, 5, uids())


def test_a_killed_engine_is_restarted_while_the_job_goes_on(kubectl: Kubectl, place: Workspace) -> None:
    job = JobInPods(kubectl, place, placement="Disaggregated", rollout={"engines": 2}, training={"steps": 60})
    job.until(lambda: job.step >= 2)
    job.inside(job.pods_of("rollout")[0], KILL_ENGINE)
    job.succeed()
    assert job.status["attempt"] == 1
    assert [done["action"] for done in job.status["recovery"]] == ["RestartEngine"]
    assert job.journal == expected_journal(60, PROMPTS_PER_STEP, 2, uids())


def test_a_suspended_job_has_no_pods_and_goes_on_from_its_checkpoint(kubectl: Kubectl, place: Workspace) -> None:
    job = JobInPods(kubectl, place, training={"steps": 40}, checkpoint={"interval": 100})
    job.until(lambda: job.step >= 3)
    job.change({"scheduling": {"suspend": True}})
    job.until(lambda: job.phase == "Suspended")
    job.until(lambda: job.pods() == [])
    (saved,) = job.checkpoints()
    job.change({"scheduling": {"suspend": False}})
    job.succeed()
    before = int(saved.removeprefix("iter_"))
    assert [record["step"] for record in job.journal if record["event"] == "committed"] == [before, 40]
