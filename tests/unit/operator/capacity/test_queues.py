"""Never, Later or Fits by Kueue's queues: what a ClusterQueue has, what it may borrow, and who else holds it."""

from typing import Any

import pytest

from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.queues import Queues, queues
from rljob_operator.capacity.verdict import Capacity, Verdict, verdict
from rljob_operator.identity import Manifest
from support.operator.operator_world import admitted, raw_job

GPU = "nvidia.com/gpu"
TWELVE = {
    "training": {"steps": 10, "gpusPerNode": 8, "optimizer": {"learningRate": 1e-5}},
    "rollout": {"engines": 4, "samplesPerPrompt": 8, "promptsPerStep": 8, "sampling": {"maxNewTokens": 8}},
    "runtime": {"device": "Gpu"},
}
LOCAL = {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"clusterQueue": "team-a"}}


def quota(flavor: str, nominal: int, **limits: int) -> Manifest:
    return {"name": flavor, "resources": [{"name": GPU, "nominalQuota": nominal, **limits}]}


def queue(name: str, *flavors: Manifest, reserved: int = 0, **spec: Any) -> Manifest:
    used = [{"name": flavors[0]["name"], "resources": [{"name": GPU, "total": str(reserved)}]}] if flavors else []
    groups = [{"coveredResources": [GPU], "flavors": list(flavors)}]
    return {
        "metadata": {"name": name},
        "spec": {"resourceGroups": groups, **spec},
        "status": {"flavorsReservation": used},
    }


def asked(*clusters: Manifest, cohorts: tuple[Manifest, ...] = (), local: Manifest = LOCAL) -> Verdict:
    known: Queues = queues([local], clusters, cohorts)
    job = admitted(raw_job(**TWELVE, scheduling={"queue": "gpus"}))
    return verdict(job, Capacity(namespace="ml", queues=known))


def test_never_names_the_queue_its_numbers_and_the_nearest_setting():
    found = asked(queue("team-a", quota("h100", 10)))
    assert found.outcome is Outcome.NEVER
    assert found.message == (
        "needs 12 × nvidia.com/gpu; ClusterQueue team-a has 10 × nvidia.com/gpu; "
        "spec.placement: Colocated would need 8 × nvidia.com/gpu"
    )


def test_what_a_cohort_lends_counts_up_to_the_limits_of_both():
    lender = queue("team-b", quota("h100", 8), cohortName="lab")
    found = asked(queue("team-a", quota("h100", 4), cohortName="lab"), lender)
    assert found.outcome is not Outcome.NEVER
    limited = asked(queue("team-a", quota("h100", 4, borrowingLimit=7), cohortName="lab"), lender)
    assert limited.outcome is Outcome.NEVER
    assert "ClusterQueue team-a has 4 × nvidia.com/gpu and may borrow 7 × nvidia.com/gpu" in limited.message
    keeper = queue("team-b", quota("h100", 8, lendingLimit=7), cohortName="lab")
    assert asked(queue("team-a", quota("h100", 4), cohortName="lab"), keeper).outcome is Outcome.NEVER


def test_a_queue_of_another_cohort_lends_nothing_and_one_below_the_same_root_does():
    mine, other = queue("team-a", quota("h100", 4), cohortName="lab"), queue("b", quota("h100", 8), cohortName="field")
    assert asked(mine, other).outcome is Outcome.NEVER
    tree = tuple({"metadata": {"name": name}, "spec": {"parentName": "firm"}} for name in ("lab", "field"))
    assert asked(mine, other, cohorts=tree).outcome is not Outcome.NEVER


def test_a_cohort_has_quota_of_its_own():
    cohort = queue("lab", quota("h100", 8))
    assert asked(queue("team-a", quota("h100", 4), cohortName="lab"), cohorts=(cohort,)).outcome is not Outcome.NEVER


def test_a_circle_of_cohorts_ends():
    circle = tuple(
        {"metadata": {"name": name}, "spec": {"parentName": above}} for name, above in (("lab", "up"), ("up", "lab"))
    )
    assert asked(queue("team-a", quota("h100", 4), cohortName="lab"), cohorts=circle).outcome is Outcome.NEVER


def test_the_pods_of_a_group_need_one_flavor():
    found = asked(queue("team-a", quota("h100", 7), quota("h200", 5)))
    assert found.outcome is Outcome.NEVER
    assert "the pods of the group trainer need 8 × nvidia.com/gpu of one flavor" in found.message
    assert asked(queue("team-a", quota("h100", 8), quota("h200", 4))).outcome is not Outcome.NEVER


def test_later_says_how_much_others_hold():
    found = asked(queue("team-a", quota("h100", 16), reserved=8))
    assert found.outcome is Outcome.LATER
    assert "ClusterQueue team-a has 16 × nvidia.com/gpu; 8 × nvidia.com/gpu are reserved" in found.message
    assert "are reserved" not in asked(queue("team-a", quota("h100", 16), reserved=4)).message


@pytest.mark.parametrize(
    ("cluster", "local", "says"),
    [
        ("team-b", LOCAL, "ClusterQueue team-a of LocalQueue gpus does not exist"),
        ("team-a", {**LOCAL, "metadata": {"name": "cpus", "namespace": "ml"}}, "namespace ml has no LocalQueue gpus"),
        ("team-a", {**LOCAL, "spec": {**LOCAL["spec"], "stopPolicy": "Hold"}}, "is stopped"),
    ],
)
def test_what_may_still_come_is_no_refusal(cluster: str, local: Manifest, says: str):
    found = asked(queue(cluster, quota("h100", 16)), local=local)
    assert found.outcome is Outcome.LATER
    assert says in found.message


def test_a_resource_that_no_quota_covers_is_told():
    found = asked({"metadata": {"name": "team-a"}, "spec": {"resourceGroups": []}})
    assert (found.outcome, "has no quota for nvidia.com/gpu" in found.message) == (Outcome.LATER, True)


@pytest.mark.parametrize(("cores", "outcome"), [("300m", Outcome.FITS), ("299m", Outcome.NEVER)])
def test_what_kuberay_adds_to_the_pods_later_is_not_counted(cores: str, outcome: Outcome):
    others = [{"name": "memory", "nominalQuota": "1Ti"}, {"name": GPU, "nominalQuota": 12}]
    flavor = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": cores}, *others]}
    assert asked(queue("team-a", flavor)).outcome is outcome


def test_a_job_without_a_queue_is_not_measured_by_queues():
    known = queues([LOCAL], [queue("team-a", quota("h100", 1))], [])
    assert verdict(admitted(raw_job(**TWELVE)), Capacity(namespace="ml", queues=known)).outcome is Outcome.FITS


@pytest.mark.parametrize("part", [None, 5, "x", [5]])
def test_an_object_of_another_shape_hides_no_other_queue(part: Any):
    odd = [{"metadata": {"name": "odd", "namespace": "ml"}, "spec": part, "status": part}, {"metadata": part}, {}]
    broken = queue("broken", quota("h100", 8))
    broken["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "eight"
    good = queue("team-a", quota("h100", 12), cohortName="lab")
    cohort = {"metadata": {"name": "lab"}, "spec": {"parentName": "all"}}
    found = queues([*odd, LOCAL], [*odd, broken, good], [*odd, cohort])
    assert found.local["ml", "gpus"] == "team-a"
    assert "team-a" in found.clusters and "broken" not in found.clusters
    assert found.parents["lab"] == "all"
