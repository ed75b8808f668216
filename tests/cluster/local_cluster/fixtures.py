"""pytest's view: fixtures that yield the path of a kubeconfig. `tests/conftest.py` loads this module as a plugin."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import home
from local_cluster.api_server import PROGRAMS, start_api_server
from local_cluster.binaries import binary

GIVEN_VARIABLE = "KUBECONFIG"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests need, before the first of them starts its clock."""
    wanted = {fixture for item in session.items for fixture in getattr(item, "fixturenames", ())}
    if "control_plane" in wanted and not os.environ.get(GIVEN_VARIABLE) and not session.config.option.collectonly:
        for name in PROGRAMS:
            binary(name, os.environ)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Path]:
    """A kubeconfig of an administrator: $KUBECONFIG if set, otherwise of a cluster started for this session."""
    if given := os.environ.get(GIVEN_VARIABLE):
        yield Path(given)
        return
    home.remove_orphans()
    directory = home.owned_directory()
    try:
        yield start_api_server(directory, os.environ).kubeconfig
    finally:
        home.remove(directory)
