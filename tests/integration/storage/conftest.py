"""One S3 server for the tests of a file, and the variables that reach it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.trainer.s3_server import CuttingProxy, S3Server, cutting_proxy, s3_server


@pytest.fixture
def server(versitygw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server of this test, with the bucket `bucket`, that the environment names."""
    with s3_server(versitygw, tmp_path / "s3") as served:
        served.bucket("bucket")
        for name, value in served.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RLJOB_CACHE", str(tmp_path / "cache"))
        yield served


@pytest.fixture
def proxy(server: S3Server) -> Iterator[CuttingProxy]:
    """A way to the server whose connections can be cut."""
    with cutting_proxy(server.port) as passing:
        yield passing
