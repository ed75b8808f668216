"""Judges what a hub answers before huggingface_hub makes paths of it.

The library joins names of files, the commit and the `ETag` to directories of the cache, and checks only the first. It
reads a whole answer of any length; what is not a file is read up to a limit here, and a file up to the
announced length. Nothing is decompressed, a slow answer times out, and the pages of a listing are limited.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rljob_api.foreign_text import printable

if TYPE_CHECKING:
    import httpx

COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
BLOB_HEADERS = ("ETag", "X-Linked-ETag")
COMMIT_HEADER = "X-Repo-Commit"
MOST_BYTES = 64 * 2**20
"""of an answer that is not a file: the names and sizes of half a million files"""
FILE = re.compile(r"/resolve/")
API = re.compile(r"/api/(?:models|datasets|spaces)/")
"""in the path of a request; an endpoint may have another path before it"""
IS_FILE = "rljob.file"
"""of a request, and of those to which it is redirected: whether a file was asked for"""
PATH = "rljob.path"
"""of a request, and of those to which it is redirected: the path that was asked for"""
MOST_PAGES = 1000
"""of a listing: a million files"""
LONGEST_NAME = 200
"""of a name in a message [characters]"""


class HubAnswerError(Exception):
    """An answer names something outside the cache of the hub; the text says what."""


@cache
def judge_answers() -> None:
    """Let huggingface_hub see only answers that `judge` has let through, from now on."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def client() -> "httpx.Client":
        made = default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {"request": [*hooks["request"], note_what], "response": [*hooks["response"], judge]}
        made.headers["Accept-Encoding"] = "identity"
        return made

    set_client_factory(client)


def note_what(request: "httpx.Request") -> None:
    """Note what is asked for, which a redirection does not change."""
    path = request.url.path
    request.extensions.setdefault(IS_FILE, bool(FILE.search(path)) and not API.search(path))
    request.extensions.setdefault(PATH, path)


def judge(response: "httpx.Response") -> None:
    """Raise HubAnswerError if an answer names a file, a blob or a commit that could lie outside the cache, or is long.

    Reads all answers but files; these raise when they are read, if they are longer than was said.
    """
    if (commit := response.headers.get(COMMIT_HEADER)) and not COMMIT.fullmatch(commit):
        raise _refusal("the commit", commit)
    if response.request.method == "HEAD":
        for header in BLOB_HEADERS:
            _judge_blob(response.headers.get(header, "").removeprefix("W/").strip('"'))
        _note_length(response)
    elif response.is_success and response.request.extensions[IS_FILE]:
        _limit(response, _lengths.get(response.request.extensions[PATH]))
    else:
        _read(response)
        _count_page(response)
        for named in _mappings(response) if response.is_success else ():
            _judge_names(named)


def is_plain(path: object) -> bool:
    """Return whether a path of a listing leads to a file below the directory to which it is joined."""
    return (
        isinstance(path, str)
        and path.isprintable()
        and "\\" not in path
        and not PurePosixPath(path).is_absolute()
        and not {"", ".", ".."} & set(path.split("/"))
    )


_lengths: dict[str, int] = {}
"""of files, by the paths that were asked for, as the answers to HEAD say [bytes]"""
_pages: list[str] = []
"""of a listing that continues"""


def _note_length(response: "httpx.Response") -> None:
    """Note how long a file is, if the answer says so: of one kept elsewhere its own header does."""
    linked = response.headers.get("X-Linked-Size")
    length = linked or (response.headers.get("Content-Length") if response.is_success else None)
    if length and length.isdecimal():
        _lengths[response.request.extensions[PATH]] = int(length)


def _read(response: "httpx.Response") -> None:
    """Read an answer that is not a file. Raises HubAnswerError if it is too long or compressed."""
    _limit(response, MOST_BYTES)
    response.read()


def _limit(response: "httpx.Response", most_bytes: int | None) -> None:
    """Let reading an answer raise HubAnswerError if it is too long. Raises it if the answer is compressed."""
    import httpx

    from rljob_trainer.data.limited_answer import LimitedBody

    path = response.request.url.path
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise HubAnswerError(f"its answer to {path} is compressed: {printable(encoding[:20])}")
    assert isinstance(response.stream, httpx.SyncByteStream), "huggingface_hub's client is not asynchronous"
    too_long = HubAnswerError(f"its answer to {path} has more than {most_bytes} bytes")
    response.stream = LimitedBody(response.stream, most_bytes, too_long)


def _count_page(response: "httpx.Response") -> None:
    """Raise HubAnswerError for a listing that never ends."""
    if "next" not in response.links:
        _pages.clear()
        return
    _pages.append(response.request.url.path)
    if len(_pages) > MOST_PAGES:
        _pages.clear()
        raise HubAnswerError(f"its listing {response.request.url.path} has more than {MOST_PAGES} pages")


def _mappings(response: "httpx.Response") -> Iterator[dict[str, object]]:
    """Yield the mappings at the top of an answer: a repository, or the entries of a listing."""
    try:
        content = response.json()
    except (ValueError, RecursionError) as error:
        raise HubAnswerError(f"the answer to {response.request.url.path} is not JSON") from error
    for each in content if isinstance(content, list) else [content]:
        if isinstance(each, dict):
            yield each


def _judge_names(named: dict[str, object]) -> None:
    siblings, lfs = named.get("siblings"), named.get("lfs")
    files = [each.get("rfilename") for each in siblings if isinstance(each, dict)] if isinstance(siblings, list) else []
    for path in [*files, *([named["path"]] if "path" in named else [])]:
        if not is_plain(path):
            raise _refusal("the file", path)
    if "sha" in named and not (isinstance(named["sha"], str) and COMMIT.fullmatch(named["sha"])):
        raise _refusal("the commit", named["sha"])
    for oid in (named.get("oid"), lfs.get("oid") if isinstance(lfs, dict) else None):
        if oid is not None:
            _judge_blob(oid)


def _judge_blob(name: object) -> None:
    if not isinstance(name, str) or "/" in name or not (name == "" or is_plain(name)):
        raise _refusal("the blob", name)


def _refusal(what: str, name: object) -> HubAnswerError:
    return HubAnswerError(f"its answer names {what} {printable(repr(name)[:LONGEST_NAME])}, which is not plain")
