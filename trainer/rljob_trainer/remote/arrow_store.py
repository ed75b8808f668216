"""S3 and Google Cloud Storage, by the file systems of pyarrow, which the trainer has for Parquet.

fsspec's own need botocore, which cannot be installed beside the client of Kubernetes: each wants another
python-dateutil. Credentials, region and endpoint are those of the SDKs: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION,
AWS_ENDPOINT_URL, roles of machines and service accounts; GOOGLE_APPLICATION_CREDENTIALS.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rljob_api.foreign_text import said
from rljob_trainer.remote.errors import ChangedError, DamagedObjectError, NotThereError, RemoteAwayError, RemoteError
from rljob_trainer.remote.store import Item

T = TypeVar("T")
CONNECT_S = 10.0
"""[s]"""
SILENCE_S = 30.0
"""of a server within a request [s]"""
TRIES = 3
"""of a request, by the SDK; what still fails then is tried again with longer pauses by the caller"""
CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
MOST_NAMES = 100_000
"""of a listing"""
PIECE_BYTES = 16 * 2**20
DAMAGED = "checksums mismatch"
WORDLESS = "No response body"
STATUS = re.compile(r"HTTP (?:status|response code) (4[0-9]{2})")
PASSING = frozenset({408, 425, 429})
"""refusals that a later request may not get"""
_NO_ACCESS = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied"
    r"|HTTP response code 40[13]|HTTP status 40[13]|Unauthorized|UNAUTHENTICATED|PERMISSION_DENIED|EXPIRED_TOKEN"
    r"|ExpiredToken|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN"
)
_NOTHING = re.compile(r"NO_SUCH_KEY|NO_SUCH_BUCKET|NoSuchBucket|RESOURCE_NOT_FOUND|HTTP response code 404|NOT_FOUND")


@dataclass(frozen=True, slots=True)
class ArrowStore:
    """One account at a store."""

    scheme: str
    system: Any
    """pyarrow's file system"""
    credentials: str
    """which ones are used, in words for its user"""

    def item(self, url: str) -> Item:
        """See `Reader`."""
        return self._asked(url, lambda path: self._item(url, path))

    def names(self, url: str) -> list[str]:
        """See `Reader`."""
        return self._asked(url, self._names)

    def read(self, item: Item, start: int, length: int) -> bytes:
        """See `Reader`."""
        return self._asked(item.url, lambda path: self._read(item, path, start, length))

    def write(self, url: str, content: bytes) -> None:
        """Write an object. Raises RemoteError; then there is no part of it."""

        def written(path: str) -> None:
            with self.system.open_output_stream(path) as stream:
                stream.write(content)

        self._asked(url, written)

    def write_file(self, url: str, source: Path, alive: Callable[[int], None]) -> None:
        """Write an object with the content of a file, in parts; `alive` gets the bytes of each, and may raise.

        Raises RemoteError, and OSError of the file. The object is there when all of it is.
        """
        with source.open("rb") as file:
            stream = self._asked(url, self.system.open_output_stream)
            try:
                while piece := file.read(PIECE_BYTES):
                    self._asked(url, partial(_write, stream, piece))
                    alive(len(piece))
            except BaseException:
                # pyarrow has no way to give an upload up: the end of the stream completes it with what was sent.
                for undo in (stream.close, lambda: self.remove([url])):
                    self._quietly(undo)
                raise
            self._asked(url, lambda _: stream.close())

    def remove(self, urls: list[str]) -> None:
        """Remove objects; those that are gone already do not matter. Raises RemoteError."""
        for url in urls:
            try:
                self._asked(url, self.system.delete_file)
            except NotThereError:
                continue

    def remove_below(self, url: str) -> None:
        """Remove all objects below a URL that ends in `/`. Raises RemoteError."""
        try:
            self._asked(url, lambda path: self.system.delete_dir(path.rstrip("/")))
        except NotThereError:
            return

    def has_bucket(self, url: str) -> bool:
        """Return whether the bucket of a URL is there; True where the key may not look."""
        from pyarrow.fs import FileType

        bucket = url.removeprefix(f"{self.scheme}://").partition("/")[0]
        try:
            found = self._asked(f"{self.scheme}://{bucket}", self.system.get_file_info)
        except RemoteAwayError:
            raise
        except RemoteError:
            return True
        return bool(found.type != FileType.NotFound)

    def _quietly(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, RemoteError):
            return

    def _item(self, url: str, path: str) -> Item:
        with self.system.open_input_file(path) as file:
            return Item(url, file.size(), self._tag(path, file.metadata()))

    def _tag(self, path: str, metadata: Mapping[bytes, bytes]) -> str:
        by_name = {_text(name).lower(): _text(value) for name, value in metadata.items()}
        tag = by_name.get("etag") or by_name.get("generation") or by_name.get("last-modified")
        return tag or str(self.system.get_file_info(path).mtime_ns)

    def _names(self, path: str) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        below = path.rstrip("/") + "/"
        found = self.system.get_file_info(FileSelector(path.rstrip("/"), recursive=True))
        names = [each.path.removeprefix(below) for each in found if each.type == FileType.File]
        if len(names) > MOST_NAMES:
            raise RemoteError(f"{self.scheme}://{path}: has more than {MOST_NAMES} objects; name a place with fewer")
        return sorted(names)

    def _read(self, item: Item, path: str, start: int, length: int) -> bytes:
        with closing(self.system.open_input_file(path)) as file:
            if (now := Item(item.url, file.size(), self._tag(path, file.metadata()))) != item:
                raise ChangedError(f"{item.url}: was changed while it was read ({item.tag} is now {now.tag})")
            content: bytes = file.read_at(length, start)
            return content

    def _asked(self, url: str, work: Callable[[str], T]) -> T:
        try:
            return work(url.removeprefix(f"{self.scheme}://"))
        except OSError as error:
            words = self._words(url, error)
            raise _judged(url, words, isinstance(error, FileNotFoundError), self.credentials) from error

    def _words(self, url: str, error: OSError) -> str:
        """Return what the server said. An answer to HEAD has no words, so a listing below the object is asked for."""
        from pyarrow.fs import FileSelector

        words = _text_of(error)
        if not (isinstance(error, FileNotFoundError) or WORDLESS in words):
            return words
        try:
            self.system.get_file_info(FileSelector(url.removeprefix(f"{self.scheme}://").rstrip("/")))
        except FileNotFoundError:
            return words
        except OSError as better:
            return _text_of(better)
        return words


def _write(stream: Any, piece: bytes, _path: str) -> None:
    stream.write(piece)


def _judged(url: str, words: str, is_absent: bool, credentials: str) -> RemoteError:
    status = STATUS.search(words)
    if DAMAGED in words:
        return DamagedObjectError(f"{url}: is damaged in the store; it said: {words}")
    if _NO_ACCESS.search(words):
        return RemoteError(f"{url}: the server does not allow it with {credentials}; it said: {words}")
    if is_absent or _NOTHING.search(words):
        return NotThereError(f"{url}: is not there; the server said: {words}")
    if status is not None and int(status[1]) not in PASSING:
        return RemoteError(f"{url}: the server refuses it; it said: {words}")
    return RemoteAwayError(f"{url}: the server cannot be reached, or fails; it said: {words}")


def s3(bucket: str, environ: Mapping[str, str]) -> ArrowStore:
    """Return the S3 of a bucket as the environment configures it. Raises RemoteError."""
    # It takes a second to import, which most runs need not wait for.
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = endpoint.rpartition("://")
    key = environ.get("AWS_ACCESS_KEY_ID")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    try:
        system = S3FileSystem(
            access_key=key or None,
            secret_key=environ.get("AWS_SECRET_ACCESS_KEY") or None,
            session_token=environ.get("AWS_SESSION_TOKEN") or None,
            region=region or (None if endpoint else resolve_s3_region(bucket)),
            endpoint_override=host.rstrip("/") or None,
            scheme=scheme or "https",
            connect_timeout=CONNECT_S,
            request_timeout=SILENCE_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=TRIES),
            tls_ca_file_path=environ.get("AWS_CA_BUNDLE") or environ.get("SSL_CERT_FILE") or None,
            background_writes=False,
        )
    except (OSError, ValueError) as error:
        raise _judged(f"s3://{bucket}", _text_of(error), isinstance(error, FileNotFoundError), CREDENTIALS) from error
    used = "the key in AWS_ACCESS_KEY_ID" if key else f"the credentials found here; {CREDENTIALS} are not set"
    return ArrowStore("s3", system, used)


def gs() -> ArrowStore:
    """Return Google Cloud Storage with the application's default credentials. Raises RemoteError."""
    from datetime import timedelta

    from pyarrow.fs import GcsFileSystem

    try:
        system = GcsFileSystem(retry_time_limit=timedelta(seconds=SILENCE_S))
    except (OSError, ValueError) as error:
        raise RemoteError(f"gs://: cannot be used; set GOOGLE_APPLICATION_CREDENTIALS: {_text_of(error)}") from error
    return ArrowStore("gs", system, "the credentials of GOOGLE_APPLICATION_CREDENTIALS")


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _text_of(error: BaseException) -> str:
    return " ".join(said(error, 400).split()).removeprefix("OSError: ").removeprefix("FileNotFoundError: ")
