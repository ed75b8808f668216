"""One object into one file: pieces, pauses, tags, and what is never used."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rljob_trainer.remote.errors import RemoteAwayError, RemoteError
from rljob_trainer.remote.store import Item
from rljob_trainer.remote.transfer import Transfer, described

URL = "s3://bucket/weights"
CONTENT = bytes(range(256)) * 40


@dataclass
class Store:
    """One object, and what goes wrong."""

    content: bytes = CONTENT
    tag: str = "v1"
    away: int = 0
    """so many of the next requests fail"""
    short: int = 0
    """so many of the next pieces lack their end"""
    damaged: int = 0
    """so many of the next pieces have another first byte"""
    asked: list[tuple[int, int]] = field(default_factory=list)

    def item(self, url: str) -> Item:
        return Item(url, len(self.content), self.tag)

    def names(self, url: str) -> list[str]:
        return []

    def read(self, item: Item, start: int, length: int) -> bytes:
        self.asked.append((start, length))
        if self.away:
            self.away -= 1
            raise RemoteAwayError(f"{item.url}: 503")
        piece = self.content[start : start + length]
        if self.short:
            self.short -= 1
            return piece[:-1]
        if self.damaged:
            self.damaged -= 1
            return bytes([piece[0] ^ 1]) + piece[1:]
        return piece


@dataclass
class Clock:
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def transfer(store: Store, clock: Clock | None = None, **changed: float) -> Transfer:
    clock = clock or Clock()
    return Transfer(store, pause=clock.pause, clock=clock, piece_bytes=1000, **changed)  # type: ignore[arg-type]


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    store = Store(short=2)
    transfer(store).fetch(store.item(URL), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_that_is_there_is_not_asked_for(tmp_path: Path) -> None:
    store = Store()
    (tmp_path / "a").write_bytes(CONTENT)
    transfer(store).fetch(store.item(URL), tmp_path / "a")
    assert store.asked == []


def test_pauses_grow_and_end(tmp_path: Path) -> None:
    store, clock = Store(away=10**6), Clock()
    with pytest.raises(RemoteAwayError, match=r"503; nothing came for \d+ s; what is downloaded is kept"):
        transfer(store, clock, longest_s=100.0).fetch(store.item(URL), tmp_path / "a")
    assert clock.pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_part_is_continued_and_that_of_another_object_is_not(tmp_path: Path) -> None:
    part = tmp_path / "a.part"
    for tag, first in (("v1", 3000), ("v0", 0)):
        (tmp_path / "a").unlink(missing_ok=True)
        part.write_bytes(CONTENT[:3000])
        described(part).write_text(json.dumps({"url": URL, "size": len(CONTENT), "tag": tag}))
        store = Store()
        transfer(store).fetch(store.item(URL), tmp_path / "a")
        assert store.asked[0][0] == first
        assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_part_of_an_object_without_a_tag_is_not_continued(tmp_path: Path) -> None:
    part = tmp_path / "a.part"
    part.write_bytes(b"?" * 3000)
    described(part).write_text(json.dumps({"url": URL, "size": len(CONTENT), "tag": ""}))
    store = Store(tag="")
    transfer(store).fetch(store.item(URL), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_bytes_that_are_not_those_of_the_etag_are_not_used(tmp_path: Path) -> None:
    store = Store(tag=f'"{hashlib.md5(CONTENT).hexdigest()}"', damaged=1)
    with pytest.raises(RemoteError, match="came damaged: its hash is not its ETag; removed, so start again"):
        transfer(store).fetch(store.item(URL), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    transfer(store).fetch(store.item(URL), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_tag_that_is_no_hash_of_the_content_is_accepted_if_the_same_bytes_come_twice(tmp_path: Path) -> None:
    """Objects that are encrypted with a key of their user have such tags."""
    store = Store(tag='"0123456789abcdef0123456789abcdef"')
    transfer(store).fetch(store.item(URL), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert len(store.asked) == 2 * 11
