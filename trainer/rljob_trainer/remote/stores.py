"""Chooses the store of a URL, and keeps it: a file system has its connections and credentials."""

from collections.abc import Mapping
from functools import cache

from rljob_trainer.remote.arrow_store import ArrowStore, gs, s3
from rljob_trainer.remote.store import Reader
from rljob_trainer.remote.web_store import WebStore

OF_S3 = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
"""variables that are read here; the SDK reads others by itself"""


def reader_of(url: str, environ: Mapping[str, str]) -> Reader:
    """Return what reads a URL of `rljob_api.objects`. Raises RemoteError."""
    return WebStore() if url.startswith("https://") else store_of(url, environ)


def store_of(url: str, environ: Mapping[str, str]) -> ArrowStore:
    """Return the store of an `s3://` or `gs://` URL. Raises RemoteError."""
    if url.startswith("gs://"):
        return gs()
    bucket = url.removeprefix("s3://").partition("/")[0]
    return _s3(bucket, tuple((name, environ.get(name, "")) for name in OF_S3))


@cache
def _s3(bucket: str, variables: tuple[tuple[str, str], ...]) -> ArrowStore:
    return s3(bucket, dict(variables))
