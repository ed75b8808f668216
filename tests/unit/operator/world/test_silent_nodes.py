"""How long pods stay on a silent node, beside the tolerations that a user has given."""

from dataclasses import replace

import pytest

from rljob_operator.world.silent_nodes import TAINTS, bounded, is_bound
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, cluster_of, raw_job

NOT_READY, UNREACHABLE = TAINTS


def stays(key: str, seconds: int = 120) -> dict[str, object]:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], [stays(NOT_READY), stays(UNREACHABLE)]),
        ([{"key": "gpu", "operator": "Exists"}], [stays(NOT_READY), stays(UNREACHABLE)]),
        ([stays(UNREACHABLE, 3600)], [stays(NOT_READY)]),
        ([{"key": NOT_READY, "operator": "Exists"}], [stays(UNREACHABLE)]),
        ([{"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}], [stays(NOT_READY), stays(UNREACHABLE)]),
        ([{"operator": "Exists"}], []),
        ([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}], []),
    ],
)
def test_a_pod_gets_a_toleration_of_each_taint_that_it_has_none_of(given, added):
    assert bounded(given, 120.0) == [*given, *added]


def templates(cluster: dict) -> list[dict]:
    return [each["template"]["spec"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("lost_pod_s", [45.0, 120.0])
def test_all_pods_of_a_raycluster_follow_the_time_after_which_a_pod_is_lost(lost_pod_s):
    found = templates(cluster_of(admitted(raw_job(), replace(DEFAULTS, lost_pod_s=lost_pod_s))))
    assert [each["tolerations"] for each in found] == [[stays(key, int(lost_pod_s)) for key in TAINTS]] * 3


@pytest.mark.parametrize(
    "sections",
    [
        {"scheduling": {"tolerations": [stays(UNREACHABLE, 9)]}},
        {"pods": {"head": {"tolerations": [stays(UNREACHABLE, 9)]}}},
        {"pods": {"head": {"template": {"spec": {"tolerations": [stays(UNREACHABLE, 9)]}}}}},
    ],
    ids=["of the job", "of a role", "of a template"],
)
def test_a_user_s_own_time_comes_first_wherever_it_is(sections):
    head = templates(cluster_of(admitted(raw_job(**sections))))[0]
    assert head["tolerations"] == [stays(UNREACHABLE, 9), stays(NOT_READY)]


def test_a_raycluster_keeps_the_times_that_it_was_built_with():
    around = Surroundings().to_running()
    around.defaults = replace(DEFAULTS, lost_pod_s=45.0)
    assert around.plan().is_empty
    (cluster,) = around.observed.rayclusters()
    for pod in templates(cluster["spec"]):
        del pod["tolerations"]  # as an older operator has built it
    assert around.plan().is_empty


def test_a_toleration_that_bounds_a_stay_opens_no_node_to_a_pod():
    assert is_bound(stays(NOT_READY))
    assert not is_bound({"key": NOT_READY, "operator": "Exists"})
    assert not is_bound(stays("spot"))
