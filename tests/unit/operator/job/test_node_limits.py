"""Nodes that pods may not be on, beside what a user has asked for."""

import copy
from typing import Any

import pytest

from rljob_operator.children import children
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.identity import ClusterRef
from rljob_operator.job.node_limits import REQUIRED, without_nodes
from support.operator.operator_world import admitted, raw_job

ELSEWHERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["gpu-7", "gpu-8"]}
OF_ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, required({"matchExpressions": [ELSEWHERE]})),
        (required({"matchExpressions": [OF_ZONE]}), required({"matchExpressions": [OF_ZONE, ELSEWHERE]})),
        (required({"matchFields": [FIELD]}), required({"matchFields": [FIELD], "matchExpressions": [ELSEWHERE]})),
        (
            required({"matchExpressions": [OF_ZONE]}, {}, {"matchFields": [FIELD]}),
            required(
                {"matchExpressions": [OF_ZONE, ELSEWHERE]},
                {},
                {"matchFields": [FIELD], "matchExpressions": [ELSEWHERE]},
            ),
        ),
    ],
    ids=["none", "an expression", "a field", "alternatives"],
)
def test_every_alternative_of_a_user_leaves_the_nodes_out(given, found):
    before = copy.deepcopy(given)
    assert without_nodes({"affinity": given}, ("gpu-7", "gpu-8"))["affinity"] == found
    assert given == before


def test_other_affinities_stay():
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    given = {"podAffinity": {REQUIRED: []}, "nodeAffinity": preferred}
    affinity = without_nodes({"affinity": given}, ("gpu-7",))["affinity"]
    assert affinity["podAffinity"] == given["podAffinity"]
    assert affinity["nodeAffinity"].items() >= preferred.items()


def test_without_nodes_to_avoid_a_pod_stays_as_it_is():
    assert without_nodes({"containers": []}, ()) == {"containers": []}


def test_the_affinity_of_a_role_and_of_a_template_is_merged():
    pods = {
        "head": {"affinity": required({"matchExpressions": [OF_ZONE]})},
        "rollout": {"template": {"spec": {"affinity": required({"matchExpressions": [OF_ZONE]})}}},
    }
    job = admitted(raw_job(pods=pods))
    spec = children.raycluster(job, ClusterRef("c", avoids=("gpu-7", "gpu-8")), RolloutPods(1))["spec"]
    templates = [each["template"]["spec"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    both, alone = required({"matchExpressions": [OF_ZONE, ELSEWHERE]}), required({"matchExpressions": [ELSEWHERE]})
    assert [each["affinity"] for each in templates] == [both, alone, both]
