"""The CRD in a real API server."""

from pathlib import Path

import pytest

from support.api.judged_rljobs import RLJobs, installed


@pytest.fixture(scope="session")
def rljobs(api_server: Path) -> RLJobs:
    """The API of RLJobs, after the CRD has been installed as `kubectl apply` does it."""
    return installed(api_server)
