"""Which pods a fault can hit, and which jobs must not be hit."""

from typing import Any

import pytest

from rljob_api.status import Phase
from rljob_cli.chaos.faults import Fault, UnknownFaultError, faults, targets
from rljob_cli.chaos.guard import ALLOWED, LABEL, refusal, unfit
from rljob_cli.jobs.jobs import Manifest
from support.cli.sample_job import job


def pod(name: str, group: str, phase: str = "Running", **metadata: Any) -> Manifest:
    labels = {"ray.io/group": group} if group else {}
    return {"metadata": {"name": name, "labels": labels, **metadata}, "status": {"phase": phase}}


APART = [
    pod("head", "headgroup"),
    pod("engine-b", "rollout"),
    pod("engine-a", "rollout-rest"),
    pod("learner", "trainer"),
    pod("tools", ""),
]


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (Fault.ENGINE_KILL, ["engine-a", "engine-b"]),
        (Fault.ENGINE_STOP, ["engine-a", "engine-b"]),
        (Fault.ROUTER_KILL, ["head"]),
        (Fault.DRIVER_KILL, ["head"]),
        (Fault.RANK_KILL, ["learner"]),
        (Fault.POD_DELETE, ["engine-a", "engine-b", "learner"]),
        (Fault.HEAD_DELETE, ["head"]),
        (Fault.EVICT, ["engine-a", "engine-b", "learner"]),
    ],
)
def test_a_fault_hits_pods_of_its_role_and_never_those_of_tools(fault: Fault, names: list[str]):
    assert [each["metadata"]["name"] for each in targets(fault, APART, 0.0)] == names


@pytest.mark.parametrize("fault", [Fault.ENGINE_STOP, Fault.RANK_KILL])
def test_pods_that_learner_and_engines_share_have_both(fault: Fault):
    assert len(targets(fault, [pod("head", "headgroup"), pod("one", "workers")], 0.5)) == 1


def test_the_draw_chooses_among_those_that_there_are():
    drawn = [targets(Fault.EVICT, APART, draw)[0]["metadata"]["name"] for draw in (0.0, 0.34, 0.67, 0.999)]
    assert drawn == ["engine-a", "engine-b", "learner", "learner"]


def test_pods_that_do_not_run_or_end_are_no_targets():
    ends = pod("ends", "rollout", deletionTimestamp="2026-11-21T12:00:00Z")
    assert targets(Fault.ENGINE_KILL, [ends, pod("waits", "rollout", "Pending")], 0.0) == []


def test_a_list_of_faults_names_each_once():
    assert faults("evict, engine-kill,evict") == (Fault.EVICT, Fault.ENGINE_KILL)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engine-kil", "'engine-kil' is not a fault; nearest valid: engine-kill"),
        (" ,", "names no fault; valid: engine"),
    ],
)
def test_a_fault_that_there_is_not_names_the_nearest(text: str, says: str):
    with pytest.raises(UnknownFaultError, match=says):
        faults(text)


@pytest.mark.parametrize("labels", [{}, {LABEL: "no"}, {LABEL: ""}, {"other": ALLOWED}, None])
def test_a_namespace_that_is_not_marked_is_refused_without_an_agreement(labels: dict[str, str] | None):
    why = refusal("ml", labels, has_agreed=False)
    assert why is not None
    assert "namespace ml is not marked" in why and f"kubectl label namespace ml {LABEL}={ALLOWED}" in why
    assert refusal("ml", labels, has_agreed=True) is None


def test_a_namespace_that_is_marked_needs_no_agreement():
    assert refusal("ml", {LABEL: ALLOWED}, has_agreed=False) is None


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.SUSPENDING, Phase.INVALID])
def test_a_job_that_does_not_train_cannot_be_hit(phase: Phase):
    assert unfit(job(phase=phase)) == f"ml/sums is {phase}; faults need a job that trains"


@pytest.mark.parametrize("phase", [Phase.PROVISIONING, Phase.STARTING, Phase.TRAINING, Phase.RECOVERING])
def test_a_job_that_trains_or_will_can_be_hit(phase: Phase):
    assert unfit(job(phase=phase)) is None
