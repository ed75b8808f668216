"""Jobs in every phase, and those who judge them."""

import os

import pytest

from local_cluster.binaries import binary
from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl
from support.operator.gitops_judge import GitOpsJudge
from support.operator.job_phases import Seen, jobs_of_all_phases


@pytest.fixture(scope="session")
def gitops_judge() -> GitOpsJudge:
    return GitOpsJudge(binary("gitops", os.environ))


@pytest.fixture(scope="session")
def phases(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """By phase, a job as it was then; `Unseen`: before any operator saw it."""
    with temporary_namespace(kubectl) as namespace:
        return jobs_of_all_phases(kubectl, namespace, tmp_path_factory.mktemp("phases"))
