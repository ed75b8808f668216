"""Downloads one object into a file: in pieces, resumed, verified, and never half there.

    NAME.part      what there is of it; NAME.part.json says of which object
    NAME           the whole object, after its length and tag are verified

A piece that fails is asked for again, with longer pauses, until nothing has come for `longest_s`.
"""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rljob_trainer.private_files import READABLE, write_whole
from rljob_trainer.remote.errors import ChangedError, RemoteAwayError, RemoteError
from rljob_trainer.remote.store import Item, Reader

T = TypeVar("T")
log = logging.getLogger(__name__)

PIECE_BYTES = 32 * 2**20
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_S = 600.0
"""without a byte, before a store is away [s]"""
MD5 = re.compile(r'"?([0-9a-f]{32})"?')
"""a tag of an object that was written in one part, and is not encrypted with a key of its user"""


def _nothing(_: int) -> None:
    """Do not report what has come."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How objects are downloaded."""

    store: Reader
    came: Callable[[int], None] = _nothing
    """is called with the bytes that have come since; also while a store is waited for, with 0"""
    longest_s: float = LONGEST_S
    piece_bytes: int = PIECE_BYTES
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def item(self, url: str) -> Item:
        """Return what there is at a URL. Raises RemoteError."""
        return self._patiently(lambda: self.store.item(url))

    def names(self, url: str) -> list[str]:
        """Return the names of all objects below a URL. Raises RemoteError."""
        return self._patiently(lambda: self.store.names(url))

    def fetch(self, item: Item, target: Path) -> None:
        """Download an object into a file, unless it is there. Raises RemoteError, and OSError of the disk."""
        if target.is_file() and target.stat().st_size == item.size:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        begin_part(item, part)
        with part.open("ab") as file:
            while (place := file.tell()) < item.size:
                file.write(self._piece(item, place))
            file.flush()
            os.fsync(file.fileno())
        self._verify(item, part)
        part.rename(target)
        described(part).unlink(missing_ok=True)

    def _piece(self, item: Item, place: int) -> bytes:
        length = min(self.piece_bytes, item.size - place)
        piece = self._patiently(lambda: self._whole_piece(item, place, length))
        self.came(len(piece))
        return piece

    def _whole_piece(self, item: Item, place: int, length: int) -> bytes:
        piece = self.store.read(item, place, length)
        if len(piece) != length:
            raise RemoteAwayError(f"{item.url}: the connection was cut: {len(piece)} of {length} bytes came")
        return piece

    def _verify(self, item: Item, part: Path) -> None:
        now = self.item(item.url)
        if now != item:
            part.unlink()
            raise ChangedError(f"{item.url}: was changed while it was downloaded ({item.tag} is now {now.tag})")
        wanted = MD5.fullmatch(item.tag)
        if wanted is None or (found := md5(part)) == wanted[1] or self._comes_again(item, found):
            return
        part.unlink()
        raise RemoteError(f"{item.url}: came damaged: its hash is not its ETag; removed, so start again")

    def _comes_again(self, item: Item, found: str) -> bool:
        """Return whether the same bytes come a second time: the tag of an encrypted object is not its hash."""
        digest, place = hashlib.md5(usedforsecurity=False), 0
        while place < item.size:
            piece = self._piece(item, place)
            digest.update(piece)
            place += len(piece)
        return digest.hexdigest() == found

    def _patiently(self, work: Callable[[], T]) -> T:
        since, pause_s = self.clock(), FIRST_PAUSE_S
        while True:
            try:
                return work()
            except RemoteAwayError as error:
                waited_s = self.clock() - since
                if waited_s + pause_s > self.longest_s:
                    kept = f"nothing came for {waited_s:.0f} s; what is downloaded is kept, and a new start continues"
                    raise RemoteAwayError(f"{error}; {kept}") from error
                log.warning("action=download outcome=again seconds=%.1f reason=%r", pause_s, str(error))
            self.came(0)
            self.pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def begin_part(item: Item, part: Path) -> None:
    """Keep what there is of an object, and remove what there is of another one."""
    wanted = {"url": item.url, "size": item.size, "tag": item.tag}
    try:
        begun = json.loads(described(part).read_bytes())
    except (OSError, ValueError, RecursionError):
        begun = None
    is_part = begun == wanted and item.tag != "" and part.is_file() and part.stat().st_size <= item.size
    if not is_part:
        part.unlink(missing_ok=True)
        write_whole(described(part), json.dumps(wanted).encode(), READABLE)


def described(part: Path) -> Path:
    """Return the file that says of which object a part is."""
    return part.with_name(f"{part.name}.json")


def md5(path: Path) -> str:
    """Return the hash by which S3 tags what was written in one part."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
