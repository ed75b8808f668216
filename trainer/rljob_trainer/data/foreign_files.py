"""What stands at a path that is not a file of rows, in words for the author of a manifest: a directory, a link to
nothing, an archive, a table of another format.

Used by the readers, and by the checks before a start, which also look at files that no reader opens.
"""

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl", ".json": "jsonl"}
CANNOT = "is compressed with {}; decompress it"
ONE_OBJECT = "JSON lines have one object a line"
BEGINNINGS: Mapping[bytes, str] = {
    b"\x1f\x8b": CANNOT.format("gzip"),
    b"\x28\xb5\x2f\xfd": CANNOT.format("zstd"),
    b"BZh": CANNOT.format("bzip2"),
    b"\xfd7zXZ\0": CANNOT.format("xz"),
    b"\x04\x22\x4d\x18": CANNOT.format("lz4"),
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"7z\xbc\xaf\x27\x1c": "is a 7z archive; unpack it",
    b"ARROW1": "is an Arrow file; write it as Parquet",
    b"\xff\xff\xff\xff": "is an Arrow stream; write it as Parquet",
    b"SQLite format 3": "is an SQLite database; write its rows as JSON lines",
    b"version https://git-lfs": "is a git-lfs pointer, not the file itself; fetch it with `git lfs pull`",
    b"<!DOCTYPE": "is a web page, not data: was there an error when it was downloaded?",
    b"<!doctype": "is a web page, not data: was there an error when it was downloaded?",
    b"<html": "is a web page, not data: was there an error when it was downloaded?",
}
PARQUET, ENCRYPTED = b"PAR1", b"PARE"
UTF_8 = b"\xef\xbb\xbf"
WIDE = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
"""beginnings of UTF-16 and UTF-32"""
SEPARATORS = {",": "CSV", "\t": "tab-separated values", ";": "CSV with semicolons"}
COLUMN = re.compile(r"\"?\w[\w .:/#()-]{0,62}\"?")
"""a name in the first line of a table"""
TAR = slice(257, 262)
HEAD = 8192
"""of a file that is looked at [bytes]"""


def no_file(path: Path) -> str | None:
    """Return why a path leads to no file that has an end; None: it does, or there is nothing. Raises OSError."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"is a link to {path.readlink()}, which is not there" if path.is_symlink() else _pattern(path)
    except NotADirectoryError:
        return f"is not there: {_file_on_the_way(path)} is a file, not a directory"
    if stat.S_ISDIR(mode):
        return directory(path)
    if not stat.S_ISREG(mode):
        return "is a device, a pipe or a socket, not a file"
    return None


def directory(path: Path) -> str:
    """Return why a directory is not read, and what to name instead."""
    rule = "is a directory; one file is wanted, and neither directories nor patterns nor lists of files are read"
    try:
        inside = sorted(file.name for file in path.iterdir() if file.suffix in SUFFIXES)
    except OSError as error:
        return f"{rule} (what is in it cannot be listed: {error.strerror})"
    return f"{rule}; {_instead(inside)}"


def no_directory(path: Path) -> str | None:
    """Return why a path leads to no directory, although something is there; None: it does, or there is nothing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"is a link to {path.readlink()}, which is not there" if path.is_symlink() else None
    except NotADirectoryError:
        return f"is not there: {_file_on_the_way(path)} is a file, not a directory"
    return None if stat.S_ISDIR(mode) else "is a file; a directory is wanted"


def no_json_lines(head: bytes) -> str | None:
    """Return why a file with this beginning holds no JSON lines; None: it may. A byte-order mark of UTF-8 is read."""
    if head[:4] in (PARQUET, ENCRYPTED):
        return "is a Parquet file; name it as `parquet`, not as `jsonl`"
    return _beginning(head) or _other_json(head.removeprefix(UTF_8)) or _table(head)


def no_parquet(head: bytes) -> str | None:
    """Return why a file with this beginning is not Parquet; None: it may be."""
    if head.startswith(ENCRYPTED):
        return "is an encrypted Parquet file; write it without encryption"
    if head.startswith(PARQUET):
        return None
    if (fault := _beginning(head)) is not None:
        return fault
    text = head.removeprefix(UTF_8).lstrip()
    if text[:1] == b"{":
        return "is JSON; if it has one object a line, name it as `jsonl`, not as `parquet`"
    return _other_json(text) or _table(head)


def _instead(names: list[str]) -> str:
    match names:
        case []:
            return "no file in it ends with .parquet or .jsonl"
        case [name]:
            return f"name {name} in it"
        case _:
            listed = f"{names[0]}, …, {names[-1]}" if len(names) > 2 else ", ".join(names)
            return f"write its {len(names)} files ({listed}) as one"


def _pattern(path: Path) -> str | None:
    """Return what is wrong with a path that is a pattern of others; None where it is none."""
    if not any(mark in path.name for mark in "*?["):
        return None
    if not (found := sorted(each.name for each in path.parent.glob(path.name))):
        return None
    rule = "is a pattern; one file is wanted, and neither directories nor patterns nor lists of files are read"
    return f"{rule}; {_instead(found)}"


def _file_on_the_way(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.exists())


def _beginning(head: bytes) -> str | None:
    if head.startswith(WIDE) or (b"\0" in head[:4] and head[:4].replace(b"\0", b"")[:1] in (b"{", b"[", b'"')):
        return "is UTF-16 or UTF-32; write it as UTF-8"
    if head[TAR] == b"ustar":
        return "is a tar archive; unpack it"
    return next((said for beginning, said in BEGINNINGS.items() if head.startswith(beginning)), None)


def _other_json(head: bytes) -> str | None:
    """Return what JSON it is that begins so and has not one object a line; None: it may have."""
    first, end, rest = head.lstrip().partition(b"\n")
    first = first.strip()
    if first[:1] == b"[":
        if end and rest.strip() and isinstance(_json(first), list):
            return None  # rows that are lists: the first of them is named
        return f"is a JSON array; {ONE_OBJECT}"
    if first == b"{" or (first[:1] == b"{" and first[-1:] in b"{[" and end and _json(first) is None):
        return f"is JSON of which one value goes over several lines; {ONE_OBJECT}"
    return None


def _json(line: bytes) -> Any:
    """Return what a line holds; None where it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _table(head: bytes) -> str | None:
    """Return what table of text has such a first line, if any."""
    text = head.removeprefix(UTF_8).decode("utf-8", "replace").lstrip()
    line = text.partition("\n")[0].rstrip("\r")
    if not line or line[0] in "{[" or _json(line.encode()) is not None:
        return None
    for separator, name in SEPARATORS.items():
        names = line.split(separator)
        if len(names) > 1 and all(map(COLUMN.fullmatch, names)):
            return f"is {name} (its first line is `{line:.80}`); write its rows as JSON lines or Parquet"
    return None
