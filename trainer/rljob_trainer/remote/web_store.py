"""Files of a web server, read by ranges.

It cannot be listed: of a model, the names that Hugging Face gives are asked for.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rljob_api.foreign_text import said
from rljob_trainer.remote.errors import ChangedError, NotThereError, RemoteAwayError, RemoteError
from rljob_trainer.remote.store import Item

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
SILENCE_S = 30.0
"""of a server, while connecting or within an answer [s]"""
MOST_HOPS = 5
"""redirections"""
SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
LONGEST_INDEX = 2**26
"""[bytes]"""
OF_MODELS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tiktoken.model",
)


@dataclass(frozen=True, slots=True)
class WebStore:
    """Web servers, without credentials."""

    client: "httpx.Client" = field(default_factory=lambda: _client())

    def item(self, url: str) -> Item:
        """See `Reader`."""
        return self._asked(url, lambda: self._item(url))

    def names(self, url: str) -> list[str]:
        """See `Reader`."""
        try:
            index = self.item(url + INDEX)
        except NotThereError:
            weights = [SINGLE]
        else:
            weights = [INDEX, *self._shards(index)]
        return sorted(name for name in (*OF_MODELS, *weights) if self._has(url + name))

    def read(self, item: Item, start: int, length: int) -> bytes:
        """See `Reader`."""
        return self._asked(item.url, lambda: self._read(item, start, length))

    def _has(self, url: str) -> bool:
        try:
            self.item(url)
        except NotThereError:
            return False
        return True

    def _shards(self, index: Item) -> list[str]:
        if index.size > LONGEST_INDEX:
            raise RemoteError(f"{index.url}: has {index.size} bytes; an index has at most {LONGEST_INDEX}")
        try:
            weights = json.loads(self.read(index, 0, index.size))["weight_map"].values()
            return sorted({str(name) for name in weights})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise RemoteError(f"{index.url}: is not an index of weights ({said(error, 200)})") from error

    def _item(self, url: str) -> Item:
        # Some servers do not answer HEAD; the first byte tells the size, too.
        with self.client.stream("GET", url, headers={"Range": "bytes=0-0"}) as answer:
            _judge(url, answer.status_code, answer.reason_phrase)
            ranged = answer.headers.get("Content-Range", "").rpartition("/")[2]
            size = ranged if answer.status_code == 206 else answer.headers.get("Content-Length", "")
            if not size.isdecimal():
                raise RemoteError(f"{url}: the server does not say how long it is, so it cannot be verified")
            return Item(url, int(size), _tag(answer.headers))

    def _read(self, item: Item, start: int, length: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        with self.client.stream("GET", item.url, headers=headers) as answer:
            _judge(item.url, answer.status_code, answer.reason_phrase)
            if (tag := _tag(answer.headers)) != item.tag:
                raise ChangedError(f"{item.url}: was changed while it was read ({item.tag} is now {tag})")
            if answer.status_code != 206 and start:
                raise RemoteError(f"{item.url}: the server does not send ranges, which a download in pieces needs")
            content = bytearray()
            for piece in answer.iter_bytes():
                content += piece
                if len(content) >= length:
                    break
            return bytes(content[:length])

    def _asked(self, url: str, work: Callable[[], T]) -> T:
        import httpx

        try:
            return work()
        except httpx.HTTPError as error:
            words = " ".join(said(error, 400).split())
            raise RemoteAwayError(f"{url}: the server cannot be reached, or fails; it said: {words}") from error


def _client() -> "httpx.Client":
    import httpx

    plain = {"Accept-Encoding": "identity"}
    return httpx.Client(timeout=SILENCE_S, headers=plain, follow_redirects=True, max_redirects=MOST_HOPS)


def _tag(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _judge(url: str, status: int, words: str) -> None:
    said_so = f"the server said: {status} {words}".rstrip()
    if status in (404, 410):
        raise NotThereError(f"{url}: is not there; {said_so}")
    if status == 429 or status >= 500:
        raise RemoteAwayError(f"{url}: the server fails; {said_so}")
    if not 200 <= status < 300:
        raise RemoteError(f"{url}: cannot be read; {said_so}")
