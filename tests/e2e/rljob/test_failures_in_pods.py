"""Failures provoked in jobs on a real node: status, event, `rljob doctor JOB` and `rljob why JOB` name each.

`make soak` runs them. `docs/sabotages.md` lists them.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.project import CLAIM, Workspace
from support.cli.command import rljob
from support.operator.job_in_pods import DATA, JobInPods
from support.trainer.tiny_models import tiny_llama
from support.trainer.whole_run import REWARD
from support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

Change = Callable[[Path], object]


def doctor(job: JobInPods) -> list[str]:
    """Return the codes that `rljob doctor JOB` prints, the most probable first."""
    said = rljob("doctor", job.name, "-n", job.place.namespace, "-o", "json", kubeconfig=job.kubectl.kubeconfig)
    return [found["code"] for found in json.loads(said.out)["failures"]]


def why(job: JobInPods) -> str:
    """Return the sentence that `rljob why JOB` prints."""
    said = rljob("why", job.name, "-n", job.place.namespace, kubeconfig=job.kubectl.kubeconfig)
    assert said.code == 0, said.err
    return said.out.splitlines()[0]


def events_of(job: JobInPods) -> set[str]:
    """Return the reasons of the job's events."""
    found = job.kubectl.get("events", "-n", job.place.namespace)["items"]
    return {event["reason"] for event in found if event["involvedObject"]["kind"] == "RLJob"}


def condition(job: JobInPods, kind: str) -> dict[str, Any]:
    return next((each for each in job.status.get("conditions", []) if each["type"] == kind), {})


@dataclass(frozen=True)
class Failure:
    """What is broken in the manifest or on the volume, and the code in the catalogue."""

    code: str
    sections: dict[str, Any] = field(default_factory=dict)
    change: Change = lambda volume: None
    """what is done to the model's directory before the job is applied"""
    reward: str = REWARD
    """the reward's file"""
    exit_reason: str = "BadInput"
    says: str = ""
    """what `why` says of a job that waits"""


# what ends a job


def edit(file: str, **change: object) -> Change:
    def edited(model: Path) -> None:
        path = model / file
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return edited


def cut(file: str, bytes_left: int) -> Change:
    return lambda model: (model / file).write_bytes((model / file).read_bytes()[:bytes_left])


def memory(amount: str) -> dict[str, Any]:
    return {"requests": {"cpu": "50m", "memory": amount}, "limits": {"memory": amount}}


ONCE = {"recovery": {"driverRestarts": 0, "infrastructureRestarts": 0}}
FAILS = {
    "no chat template": Failure("ChatTemplateMissing", change=edit("tokenizer_config.json", chat_template=None)),
    "a file of questions that is not there": Failure(
        "PathNotFound", {"data": {"train": {"jsonl": "/data/none.jsonl"}}}
    ),
    "a model that is not there": Failure("ModelNotFound", change=shutil.rmtree),
    "weights that are cut off": Failure("CheckpointShardsMissing", change=cut("model.safetensors", 5000)),
    "an architecture that nobody knows": Failure(
        "LearnerModelUnsupported",
        change=edit("config.json", architectures=["MambaForCausalLM"]),
        exit_reason="BadManifest",
    ),
    "a context that no question fits": Failure(
        "PromptTooLong", {"rollout": {"contextLength": 12, "sampling": {"maxNewTokens": 8}}}
    ),
    "no space for checkpoints": Failure("DiskFull", {"checkpoint": {"keep": 100_000_000}}),
    "a reward with an error of syntax": Failure("UserFunctionMissing", reward="def digits(:\n"),
    "a reward of another name": Failure("UserFunctionMissing", {"reward": {"function": "tiny_reward:letters"}}),
    "a reward that imports what is not there": Failure(
        "UserFunctionMissing", reward=f"import no_such_package\n\n{REWARD}"
    ),
    "a reward that raises": Failure(
        "RewardFunctionFailed", reward="def digits(question, response, label, metadata):\n    raise ValueError(label)\n"
    ),
    "a reward that hangs": Failure(
        "RewardTimeout",
        {"reward": {"timeoutSeconds": 1}},
        reward="import time\n\n\ndef digits(question, response, label, metadata):\n    time.sleep(99)\n",
    ),
    "a loss that is not finite": Failure(
        "NonFiniteStep",
        {"training": {"optimizer": {"learningRate": 1.0e30, "maxSkippedSteps": 0}}},
        exit_reason="Diverged",
    ),
    "workers that have too little memory": Failure(
        "HostOutOfMemory", {"runtime": {"workerResources": memory("1200Mi")}} | ONCE, exit_reason=""
    ),
}


def applied(kubectl: Kubectl, place: Workspace, failure: Failure) -> JobInPods:
    """Return the job, applied after its files were broken."""

    def write_model(model: Path) -> None:
        tiny_llama(model)
        failure.change(model)

    return JobInPods(kubectl, place, write_model=write_model, reward_file=failure.reward, **failure.sections)


@pytest.mark.parametrize("name", FAILS)
def test_a_job_that_fails_names_the_failure(kubectl: Kubectl, place: Workspace, name: str) -> None:
    failure = FAILS[name]
    job = applied(kubectl, place, failure)
    eventually(lambda: job.phase, lambda phase: phase == "Failed", 400)
    failed = condition(job, "Failed")
    if failure.exit_reason:
        assert failed["reason"] == failure.exit_reason, failed
    assert job.attempts[-1]["failure"]["code"] == failure.code, (failed, job.report())
    assert f"{failure.code}: " in failed["message"]
    eventually(lambda: events_of(job), lambda reasons: failure.code in reasons)
    assert doctor(job)[0] == failure.code
    assert failure.code in why(job) or failed["message"][:60] in why(job)


# what keeps a job from starting


WAITS = {
    "an image that nobody has": Failure(
        "ImagePullFailed", {"runtime": {"image": "registry.invalid/rljob/none:1"}}, says="ErrImageNeverPull"
    ),
    "a secret that is not there": Failure(
        "ContainerConfigError",
        {"runtime": {"env": {"TOKEN": {"valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "token"}}}}}},
        says='secret "no-such-secret" not found',
    ),
    "a manifest that is invalid": Failure(
        "RljobBadManifest", {"runtime": {"env": {"TOKEN": {"secretKeyRef": {}}}}}, says="spec.runtime.env"
    ),
    "a claim that is not there": Failure(
        "VolumeUnbound",
        {"runtime": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "no-such-claim"}}]}},
        says='persistentvolumeclaim "no-such-claim" not found',
    ),
    "a volume of a ConfigMap that is not there": Failure(
        "VolumeMountFailed",
        {
            "runtime": {
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}},
                    {"name": "more", "configMap": {"name": "no-such-map"}},
                ],
                "volumeMounts": [
                    {"name": "data", "mountPath": str(DATA), "readOnly": True},
                    {"name": "more", "mountPath": "/more"},
                ],
            }
        },
        says='configmap "no-such-map" not found',
    ),
    "more memory than any node has": Failure(
        "PodUnschedulableResources", {"runtime": {"headResources": memory("900Gi")}}, says="Insufficient memory"
    ),
    "less memory than Ray needs": Failure(
        "RayMemoryTooSmall",
        {"runtime": {"headResources": memory("700Mi")}},
        says="exit code 1: ValueError: Attempting to cap",
    ),
    "a selector that no node has": Failure(
        "PodUnschedulableTaint",
        {"scheduling": {"nodeSelector": {"no": "node"}}},
        says="didn't match Pod's node affinity/selector",
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_job_that_cannot_start_names_what_is_missing(kubectl: Kubectl, place: Workspace, name: str) -> None:
    failure = WAITS[name]
    job = applied(kubectl, place, failure)
    eventually(lambda: (doctor(job) or [""])[0], lambda code: code == failure.code, 200)
    assert job.phase not in ("Training", "Succeeded", "Failed"), job.report()
    eventually(lambda: why(job), lambda sentence: failure.says in sentence)


# what a job survives


def kill(words: str) -> str:
    """Return the script that kills the oldest process with these words in its command line."""
    return f"""python - <<'EOF'
import os
import psutil
found = [p for p in psutil.process_iter() if {words!r} in ' '.join(p.cmdline()) and p.pid != os.getpid()]
min(found, key=lambda process: process.create_time()).kill()
EOF
"""


@dataclass(frozen=True)
class Survived:
    """What is done to a pod of a job that trains, and the codes of which one is reported."""

    group: str
    script: str
    """empty: the pod is deleted at once, as with its node"""
    codes: frozenset[str]


LOST = frozenset({"LearnerLost", "RayActorDied", "RayWorkerDied"})
SURVIVES = {
    "the learner is killed": Survived("workers", kill("ray::RankHost"), LOST),
    "the driver is killed": Survived("headgroup", kill("rljob_trainer.driver"), frozenset({"ProgramFailed"})),
    "Ray's agent of a pod is killed": Survived("workers", kill("raylet/raylet"), LOST | {"RayNodeDied"}),
    "Ray's store is killed": Survived("headgroup", kill("gcs_server"), frozenset({"RayGcsLost"})),
    "a pod of the workers is lost": Survived("workers", "", LOST | {"RayNodeDied", "NodeLost"}),
}


@pytest.mark.parametrize("name", SURVIVES)
def test_a_job_that_recovers_names_what_it_survived(kubectl: Kubectl, place: Workspace, name: str) -> None:
    done = SURVIVES[name]
    job = JobInPods(kubectl, place, training={"steps": 30}, checkpoint={"interval": 5})
    job.until(lambda: job.step >= 6)
    (pod, *_) = job.pods_of(done.group)
    if done.script:
        job.inside(pod, done.script)
    else:
        kubectl("delete", "pod", pod, "-n", place.namespace, "--grace-period=0", "--force")
    job.until(lambda: job.status["attempt"] >= 2)
    first = job.attempts[0]
    assert first["failure"]["code"] in done.codes, first
    eventually(lambda: events_of(job), lambda reasons: first["failure"]["code"] in reasons)
    assert doctor(job)[0] in done.codes
    assert "attempt 1 ended: " in why(job)
    job.succeed()


def test_a_head_that_is_drained_is_no_failure(kubectl: Kubectl, place: Workspace) -> None:
    job = JobInPods(kubectl, place, training={"steps": 30}, checkpoint={"interval": 50})
    job.until(lambda: job.step >= 6)
    job.evict(job.pods_of("headgroup")[0])
    job.until(lambda: job.status["attempt"] >= 2)
    first = job.attempts[0]
    assert "failure" not in first and first["checkpointStep"] >= 6, first
    assert "Evicted" in events_of(job)
    job.succeed()
