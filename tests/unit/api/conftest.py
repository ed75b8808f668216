import pytest

from support.api.bad_manifests import table


@pytest.fixture(scope="session")
def good() -> str:
    """A valid manifest: 8 GPUs, colocated, 256 samples a step."""
    text: str = table()["good"]
    return text
