"""What the rest needs of a store: `s3://`, `gs://` (`arrow_store.py`) or a web server (`web_store.py`)."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Item:
    """An object of a store, as it is now."""

    url: str
    size: int
    """[bytes]"""
    tag: str
    """differs when the content does: an ETag, or the time of the last change"""


class Reader(Protocol):
    """Reads objects. Every method raises RemoteError; RemoteAwayError means that the same call may succeed later."""

    def item(self, url: str) -> Item:
        """Return what there is at a URL. Raises NotThereError."""

    def names(self, url: str) -> list[str]:
        """Return the names of all objects below a URL that ends in `/`, relative to it; none: there are none."""

    def read(self, item: Item, start: int, length: int) -> bytes:
        """Return bytes of an object. Raises ChangedError if it is not the one that `item` was."""
