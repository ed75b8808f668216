"""No suite may leave a secret in a log."""

from collections.abc import Iterator

import pytest

from support import secrets_in_logs


@pytest.fixture(scope="session", autouse=True)
def _logs_without_secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end of the session, when all processes have ended."""
    with secrets_in_logs.watching_processes():
        yield
    found = secrets_in_logs.found_in(tmp_path_factory.getbasetemp())
    assert not found, "\n".join(["secrets in logs:", *found[:50]])
