"""The cache of what a manifest names in object stores and on web servers: models and files of questions.

    CACHE/objects/HASH OF THE URL/
      newest                  the digest of what was there when it was last looked at
      snapshots/DIGEST.json   names, sizes and tags of the objects, which the digest is of
      snapshots/DIGEST/       those that were wanted, each whole and verified

So a URL whose content changes is another snapshot, and a run that resumes can ask for the one that it began with.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from rljob_trainer.data.hub import ALL, NEVER, SMALL, reported
from rljob_trainer.data.hub_answers import is_plain
from rljob_trainer.private_files import READABLE, write_whole
from rljob_trainer.processes.file_lock import locked
from rljob_trainer.remote.errors import ChangedError, NotThereError, RemoteError
from rljob_trainer.remote.store import Item, Reader
from rljob_trainer.remote.stores import reader_of
from rljob_trainer.remote.transfer import LONGEST_S, Transfer

SNAPSHOTS, NEWEST = "snapshots", "newest"


@dataclass(frozen=True, slots=True)
class Objects:
    """How stores are reached, and where their objects are kept."""

    cache: Path
    reader: Callable[[str], Reader]
    """returns what reads a URL"""
    longest_s: float = LONGEST_S
    """without a byte, before a store is away [s]"""


@dataclass
class Progress:
    """The bytes that have come."""

    number: int = 0

    def add(self, number: int) -> None:
        """Count bytes."""
        self.number += number


def objects_of(environ: Mapping[str, str], cache: Path) -> Objects:
    """Return the stores that the environment configures; their objects are kept in the cache."""
    return Objects(cache / "objects", lambda url: reader_of(url, environ))


def fetched(
    objects: Objects,
    url: str,
    *,
    is_model: bool,
    patterns: Sequence[str] = ALL,
    beat: Callable[[], None] | None = None,
    pinned: str | None = None,
) -> Path:
    """Return the directory of a model's files, or the path of a file; what is not in the cache is downloaded.

    A model's files that match no pattern are left out. `beat` is called every ten seconds. `pinned` is the digest that
    the content must have; if that is in the cache, the store is not asked. Raises RemoteError.
    """
    home = _home(objects, url)
    if pinned is not None and (there := _whole(home, url, pinned, is_model, patterns)) is not None:
        return there
    progress = Progress()
    transfer = Transfer(objects.reader(url), came=progress.add, longest_s=objects.longest_s)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with reported(url, lambda: progress.number, beat), locked(home / "lock"):
            items = _items(transfer, url, is_model)
            digest = digest_of(items)
            if pinned not in (None, digest):
                raise ChangedError(
                    f"{url}: has changed since the run began, and the cache no longer has what it began with; put the "
                    "old content back, or name the new content with another URL in a new run"
                )
            return _snapshot(transfer, home, url, items, is_model, patterns)
    except OSError as error:
        raise RemoteError(f"{url}: cannot be kept in {home}: {error.strerror or error}") from error


def cached(objects: Objects, url: str, *, is_model: bool, patterns: Sequence[str] = SMALL) -> Path | None:
    """Return what `fetched` would without the network; None: it is not in the cache."""
    home = _home(objects, url)
    try:
        return _whole(home, url, (home / NEWEST).read_text(), is_model, patterns)
    except (OSError, UnicodeDecodeError):
        return None


def digest_of(items: Mapping[str, Item]) -> str:
    """Return the digest of names, sizes and tags, in hexadecimal digits."""
    return hashlib.sha256(_listing(items)).hexdigest()


def _home(objects: Objects, url: str) -> Path:
    return objects.cache / hashlib.sha256(url.encode()).hexdigest()[:24]


def _items(transfer: Transfer, url: str, is_model: bool) -> dict[str, Item]:
    """Return the objects by their names: all files of a model that a run can want, or the one file."""
    if not is_model:
        name = url.rpartition("/")[2]
        if not name:
            raise RemoteError(f"{url}: names no object; a file is expected, not all below a place")
        return {name: transfer.item(url)}
    place = url.rstrip("/") + "/"
    names = transfer.names(place)
    wanted = [name for name in names if is_plain(name) and _matches(name, ALL)]
    if not wanted:
        holds = f"it holds {len(names)} other objects" if names else "there is nothing"
        raise NotThereError(f"{place}: holds no files of a model: {holds}; config.json and *.safetensors are expected")
    return {name: transfer.item(place + name) for name in wanted}


def _snapshot(
    transfer: Transfer, home: Path, url: str, items: Mapping[str, Item], is_model: bool, patterns: Sequence[str]
) -> Path:
    digest = digest_of(items)
    directory = home / SNAPSHOTS / digest
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {name: item for name, item in items.items() if not is_model or _matches(name, patterns)}
    _require_room(directory, url, wanted)
    for name, item in wanted.items():
        transfer.fetch(item, directory / name)
    write_whole(directory.with_name(f"{digest}.json"), _listing(items), READABLE)
    write_whole(home / NEWEST, digest.encode(), READABLE)
    return directory if is_model else directory / next(iter(items))


def _require_room(directory: Path, url: str, wanted: Mapping[str, Item]) -> None:
    parts = (directory / name for name in wanted)
    there = sum(_size(path) or _size(path.with_name(f"{path.name}.part")) for path in parts)
    missing, room = sum(item.size for item in wanted.values()) - there, shutil.disk_usage(directory).free
    if missing > room:
        raise RemoteError(
            f"{url}: {missing / 1e9:.2f} GB are to be downloaded, and {directory} has room for {room / 1e9:.2f} GB"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _whole(home: Path, url: str, digest: str, is_model: bool, patterns: Sequence[str]) -> Path | None:
    """Return a snapshot if all that is wanted of it is there."""
    directory = home / SNAPSHOTS / digest
    try:
        listing = directory.with_name(f"{digest}.json").read_bytes()
        if hashlib.sha256(listing).hexdigest() != digest:
            return None
        sizes = {name: size for name, size, _ in json.loads(listing)}
    except (OSError, ValueError):
        return None
    wanted = [name for name in sizes if not is_model or _matches(name, patterns)]
    if not all((directory / name).is_file() and _size(directory / name) == sizes[name] for name in wanted):
        return None
    return directory if is_model else directory / next(iter(sizes))


def _listing(items: Mapping[str, Item]) -> bytes:
    return json.dumps([(name, items[name].size, items[name].tag) for name in sorted(items)]).encode()


def _matches(name: str, patterns: Sequence[str]) -> bool:
    def any_of(some: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in some)

    return any_of(patterns) and not any_of(NEVER)
