"""Wrong objects, put to an API server with kubectl while no operator and no webhook run: it refuses them itself."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from support.api.bad_manifests import edited, table
from support.api.judged_rljobs import RLJobs

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"metadata.name": "9-lives"}, "is not a DNS label"),
    ({"spec.rollout.engines": 0}, "spec.rollout.engines"),
    ({"spec.rollout.gpusPerEngine": 3, "spec.rollout.engines": 1}, "gpusPerEngine"),
    ({"spec.training.tensorParallel": 3}, "tensorParallel"),
    ({"spec.training.gpusPerNode": "eight"}, "must be of type integer"),
    ({"spec.placement": "Shared"}, "Unsupported value"),
    ({"spec.algorithm.name": "grpo2"}, "is not a known algorithm"),
    ({"spec.rollout.sampling.temperature": -1.0}, "spec.rollout.sampling.temperature"),
    ({"spec.training.optimizer.learning_rate": 1e-6}, 'unknown field "spec.training.optimizer.learning_rate"'),
    ({"spec.scheduling.activeDeadlineSeconds": 0}, "spec.scheduling.activeDeadlineSeconds"),
]


@pytest.mark.usefixtures("rljobs")
@pytest.mark.parametrize(
    ("change", "says"), WRONG, ids=lambda given: next(iter(given)) if isinstance(given, dict) else ""
)
def test_a_wrong_object_is_refused_with_no_operator(
    kubectl_program: Path, api_server: Path, change: dict[str, Any], says: str
) -> None:
    judge = Kubectl(kubectl_program, api_server)
    with pytest.raises(ClusterError, match=says):
        judge("create", "-n", "default", "-f", "-", given=edited(table()["good"], {"set": change}))


def test_the_good_object_is_taken(kubectl_program: Path, api_server: Path, rljobs: RLJobs) -> None:
    judge = Kubectl(kubectl_program, api_server)
    assert rljobs.judge(yaml.safe_load(table()["good"])).causes == ()
    assert "created" in judge("create", "-n", "default", "--dry-run=server", "-f", "-", given=table()["good"])
