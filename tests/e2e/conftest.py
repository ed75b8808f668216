"""No suite may leave a secret in a log, and tests that need GPUs are marked."""

import pytest

from support.secrets_in_logs import logs_without_secrets as logs_without_secrets


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark by which `make e2e` leaves these tests out."""
    config.addinivalue_line("markers", "gpu: needs GPUs; run by `make e2e-gpu` alone")
