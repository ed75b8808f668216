"""What is not a file of rows is refused with what it is, and with what to do."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rljob_api.sections import Data, Source
from rljob_trainer.data import index, sources
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.json_lines import JsonLines
from rljob_trainer.data.scan import scanned
from rljob_trainer.data.sources import questions

ROWS = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TABLE = pyarrow.Table.from_pylist(ROWS)


def zipped() -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w") as archive:
        archive.writestr("q.jsonl", LINES)
    return made.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(made := io.BytesIO()), mode="w") as archive:
        (entry := tarfile.TarInfo("q.jsonl")).size = len(LINES)
        archive.addfile(entry, io.BytesIO(LINES.encode()))
    return made.getvalue()


def parquet() -> bytes:
    pyarrow.parquet.write_table(TABLE, made := io.BytesIO())
    return made.getvalue()


def arrow(new: Callable[..., pyarrow.ipc.RecordBatchStreamWriter]) -> bytes:
    with new(made := io.BytesIO(), TABLE.schema) as writer:
        writer.write_table(TABLE)
    return made.getvalue()


OF_EITHER = {
    "gzip": (gzip.compress(LINES.encode()), "it is compressed with gzip; decompress it"),
    "bzip2": (bz2.compress(LINES.encode()), "it is compressed with bzip2"),
    "xz": (lzma.compress(LINES.encode()), "it is compressed with xz"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(20), "it is compressed with zstd"),
    "zip": (zipped(), "it is a zip archive; unpack it"),
    "tar": (tarred(), "it is a tar archive; unpack it"),
    "Arrow": (arrow(pyarrow.ipc.new_file), "it is an Arrow file; write it as Parquet"),
    "an Arrow stream": (arrow(pyarrow.ipc.new_stream), "it is an Arrow stream; write it as Parquet"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "it is a git-lfs pointer"),
    "a web page": (b"<!DOCTYPE html><html>", "it is a web page, not data"),
    "UTF-16": (LINES.encode("utf-16"), "it is UTF-16 or UTF-32; write it as UTF-8"),
    "UTF-16 without a mark": (LINES.encode("utf-16-be"), "it is UTF-16 or UTF-32"),
    "UTF-32": (LINES.encode("utf-32"), "it is UTF-16 or UTF-32"),
    "an array": (json.dumps(ROWS).encode(), "it is a JSON array"),
    "an array over lines": (json.dumps(ROWS, indent=1).encode(), "it is a JSON array"),
    "an array with a row a line": (("[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]").encode(), "it is a JSON array"),
    "a long array": (json.dumps(ROWS * 1000).encode(), "it is a JSON array"),
    "CSV": (b"question,answer\n1 + 1,2\n", "it is CSV (its first line is `question,answer`)"),
    "CSV with quotes and a mark": (b'\xef\xbb\xbf"question","answer"\r\n"1 + 1","2"\r\n', "it is CSV"),
    "TSV": (b"question\tanswer\n1 + 1\t2\n", "it is tab-separated values"),
}  # fmt: skip
OF_LINES = {
    "Parquet": (parquet(), "it is a Parquet file; name it as `parquet`, not as `jsonl`"),
    "an object over lines": (json.dumps(ROWS[0], indent=1).encode(), "it is JSON of which one value goes over several"),
    "an object of lists": (b'{"train": [\n{"question": 1}]}', "it is JSON of which one value goes over several"),
}
OF_PARQUET = {
    "JSON lines": (LINES.encode(), "it is JSON; if it has one object a line, name it as `jsonl`, not as `parquet`"),
    "encrypted": (b"PARE" + bytes(20), "it is an encrypted Parquet file"),
    "nothing": (b"", "Parquet file size is 0 bytes"),
}


@pytest.fixture(params=[False, True], ids=["held", "in its file"])
def kept(request, monkeypatch) -> None:
    """Let the rows of a file be held, or stay in it."""
    if request.param:
        monkeypatch.setattr(sources, "HELD_BYTES", 0)
        monkeypatch.setattr(index, "_worked", lambda task: [scanned(JsonLines(task.path), p, task) for p in task.parts])


def refused(source: Source) -> str:
    with pytest.raises(DataError) as raised:
        questions(Data(train=source))
    return str(raised.value)


@pytest.mark.parametrize("name", OF_EITHER | OF_LINES)
@pytest.mark.usefixtures("kept")
def test_a_file_that_holds_no_json_lines_is_named(tmp_path: Path, name: str) -> None:
    content, said = (OF_EITHER | OF_LINES)[name]
    (tmp_path / "q.jsonl").write_bytes(content)
    found = refused(Source(jsonl=str(tmp_path / "q.jsonl")))
    assert found.startswith(f"{tmp_path}/q.jsonl: not JSON lines: {said}")


@pytest.mark.parametrize("name", OF_EITHER | OF_PARQUET)
@pytest.mark.parametrize("held", [2**26, -1], ids=["held", "in its file"])
def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, monkeypatch, held: int, name: str) -> None:
    monkeypatch.setattr(sources, "HELD_BYTES", held)
    content, said = (OF_EITHER | OF_PARQUET)[name]
    (tmp_path / "q.parquet").write_bytes(content)
    found = refused(Source(parquet=str(tmp_path / "q.parquet")))
    assert found.startswith(f"{tmp_path}/q.parquet: cannot be read as Parquet: ")
    assert said in found


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"\xef\xbb\xbf" + LINES.encode(), ["1", "2", "3"]),
        (b'\n  {"question": "[1, 2]", "answer": "a, b"}\n', ["a, b"]),
        ('{"question": "é", "answer": "\\ud83d\\ude00"}'.encode(), ["\N{GRINNING FACE}"]),
    ],
)
@pytest.mark.usefixtures("kept")
def test_json_lines_are_not_taken_for_something_else(tmp_path: Path, content: bytes, labels: list[str]) -> None:
    (tmp_path / "q.jsonl").write_bytes(content)
    assert [row.label for row in questions(Data(train=Source(jsonl=str(tmp_path / "q.jsonl")))).train] == labels


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b'{"question": "\\ud83d", "answer": "b"}', "has half a character (a surrogate such as \\ud83d"),
        (b'{"question": "a", "answer": "x \\udc00"}', "has half a character"),
        (b'{"question": [{"role": "user", "content": "\\ud83d"}], "answer": "b"}', "has half a character"),
        ('{"question": "é", "answer": "b"}'.encode("latin-1"), "not JSON: not UTF-8 from byte 14 on"),
        (b"[1, 2]", "a JSON object is wanted, found list"),
    ],
)
@pytest.mark.usefixtures("kept")
def test_a_row_that_is_no_text_is_refused_with_the_reason(tmp_path: Path, row: bytes, said: str) -> None:
    (tmp_path / "q.jsonl").write_bytes(LINES.encode() + row + b"\n")
    assert refused(Source(jsonl=str(tmp_path / "q.jsonl"))).startswith(f"{tmp_path}/q.jsonl:4: {said}")


def test_a_text_of_parquet_that_is_not_utf_8_is_refused_with_its_row(tmp_path: Path) -> None:
    broken = pyarrow.array([b"a", b"\xed\xa0\xbd"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"question": broken, "answer": ["1", "2"]}), tmp_path / "q.parquet")
    assert "q.parquet row 2: has a text that is not UTF-8" in refused(Source(parquet=str(tmp_path / "q.parquet")))


def directory(path: Path, *names: str) -> None:
    path.mkdir()
    for name in names:
        (path / name).write_text(LINES)


RULE = "it is a directory; one file is wanted, and neither directories nor patterns nor lists of files are read; "
PATHS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a directory of shards": (
        lambda path: directory(path, "0.parquet", "1.parquet", "2.parquet"),
        f"{RULE}write its 3 files (0.parquet, …, 2.parquet) as one",
    ),
    "a directory of two": (lambda path: directory(path, "a.jsonl", "b.jsonl"), "2 files (a.jsonl, b.jsonl) as one"),
    "a directory of one": (lambda path: directory(path, "0.jsonl", "README.md"), f"{RULE}name 0.jsonl in it"),
    "an empty directory": (directory, f"{RULE}no file in it ends with .parquet or .jsonl"),
    "a link to nothing": (lambda path: path.symlink_to("gone"), "it is a link to gone, which is not there"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_leads_to_no_file_is_refused_with_the_reason(tmp_path: Path, name: str, kind: str) -> None:
    make, said = PATHS[name]
    make(tmp_path / "data")
    assert said in refused(Source(**{kind: str(tmp_path / "data")}))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_pattern_and_a_file_for_a_directory_are_named(tmp_path: Path, kind: str) -> None:
    directory(tmp_path / "data", "0.jsonl", "1.jsonl")
    assert "it is a pattern; one file is wanted" in refused(Source(**{kind: str(tmp_path / "data" / "*.jsonl")}))
    inside = refused(Source(**{kind: str(tmp_path / "data" / "0.jsonl" / "q")}))
    assert f"it is not there: {tmp_path}/data/0.jsonl is a file, not a directory" in inside


def test_a_file_that_may_not_be_read_is_refused_with_that_reason(tmp_path: Path, monkeypatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    (tmp_path / "q.jsonl").write_text(LINES)
    monkeypatch.setattr(io, "open", forbidden)
    assert refused(Source(jsonl=str(tmp_path / "q.jsonl"))).endswith("q.jsonl: cannot be read: Permission denied")
