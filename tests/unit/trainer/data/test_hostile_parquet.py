"""Small Parquet files that become large are refused with file, row group and limit, before this process has them."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ListArray, array, nulls
from pyarrow.parquet import write_table

from rljob_api.sections import Data, Source
from rljob_trainer.data import parquet, sources
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.parquet import ParquetRows, batches, parquet_rows, size
from rljob_trainer.data.sources import questions

MOST_TAKEN = 2**28
"""of this process, for files that would take gigabytes [bytes]"""


def written(directory: Path, column: Any, row_group_size: int | None = None) -> Path:
    texts = array(["a"] * len(column))
    table = pyarrow.table({"question": texts, "answer": texts, "more": column})
    path = directory / "q.parquet"
    write_table(table, path, compression="zstd", store_schema=False, row_group_size=row_group_size)
    assert path.stat().st_size < 50_000
    return path


def in_one_row(values: Any) -> Any:
    return ListArray.from_arrays(array([0, len(values)], pyarrow.int32()), values)


def one_text(times: int, length: int) -> Any:
    return pyarrow.DictionaryArray.from_arrays(array([0] * times, pyarrow.int32()), array(["y" * length]))


BOMBS: dict[str, Callable[[], Any]] = {
    "a text in each of many rows": lambda: one_text(50_000, 50_000),
    "a text many times in one row": lambda: in_one_row(one_text(150_000, 2_000)),
    "a list of nothing": lambda: in_one_row(nulls(40_000_000)),
    "a page that unpacks a thousandfold": lambda: array(["z" * 300_000_000]),
}


WAYS = [(name, held) for name in BOMBS for held in (True, False) if not (held and "many rows" in name)]
"""rows that are held have a larger limit together, which a test below makes small"""


@pytest.mark.parametrize(("name", "held"), WAYS)
def test_a_small_file_that_becomes_large_is_refused_by_its_row_group(tmp_path, monkeypatch, name, held):
    path = written(tmp_path, BOMBS[name]())
    monkeypatch.setattr(sources, "HELD_BYTES", sources.HELD_BYTES if held else 0)
    monkeypatch.setattr(sources, "GROUP_BYTES", 2**40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"q\.parquet row group 0.* \d{9,}"):
        questions(Data(train=Source(parquet=str(path))))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_TAKEN


def test_rows_that_are_held_have_a_limit_together(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "DECODED_BYTES", 2**24)
    path = written(tmp_path, one_text(1_000, 50_000), row_group_size=100)
    with pytest.raises(DataError, match=r"q\.parquet row group 3: more than 16777216 bytes in memory up to row 400;"):
        list(batches(path, None))


def test_a_row_group_has_a_limit_where_rows_are_read_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_GROUP_BYTES", 2**20)
    rows = ParquetRows(written(tmp_path, one_text(100, 50_000), row_group_size=10))
    assert len(list(rows.scan(rows.parts(None)[0], ["question"], Sink()))) == 10
    rows = ParquetRows(written(tmp_path, one_text(100, 50_000), row_group_size=50))
    with pytest.raises(DataError, match=r"row group 1: takes more than 1048576 bytes"):
        list(rows.scan(rows.parts(None)[1], ["question"], Sink()))


class Sink:
    def update(self, data: bytes, /) -> None:
        pass


def test_one_row_that_takes_too_much_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_ROW_BYTES", 1_000_000)
    texts = array(["short"] * 6 + ["z" * 2_000_000] + ["short"] * 3)
    with pytest.raises(DataError, match=r"row group 1, its row 2: takes 20000\d\d bytes; at most 1000000"):
        list(batches(written(tmp_path, texts, row_group_size=5), None))


def claiming(path: Path, rows: int, claimed: int) -> None:
    """Let the footer of a file say another number of rows, of its row groups and columns, too."""
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8].replace(varint(2 * rows), varint(2 * claimed))
    assert len(footer) > length
    path.write_bytes(content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("held", [True, False], ids=["held", "read row by row"])
def test_a_footer_that_claims_more_rows_than_there_are_is_refused(tmp_path, monkeypatch, held):
    path = written(tmp_path, array(["b"] * 20_011))
    claiming(path, 20_011, 2**60)
    monkeypatch.setattr(sources, "HELD_BYTES", sources.HELD_BYTES if held else 0)
    with pytest.raises(DataError, match=r"q\.parquet row group 0: .*(1152921504606846976 rows, and has|cannot)"):
        questions(Data(train=Source(parquet=str(path))))


def test_a_file_that_takes_the_processor_for_ever_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, array(["b"]))
    monkeypatch.setattr(parquet, "TRIAL", ("bash", "-c", "echo 4; ulimit -t 1; while true; do :; done", "name"))
    with pytest.raises(DataError, match=r"q\.parquet row group 4: decoding it takes more than \d+ bytes or 60 s"):
        list(parquet_rows(path))


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([None, "ab"], 2),
        ([[1, 2], None, [None] * 5], 3 + 7),
        ([{"a": [1, 2], "b": None}, {"a": [], "b": None}], 2 + (2 + 2) + 2),
        ([[[], [[]]], [[[]]]], 2 + 3 + 2 + 0),
    ],
)
def test_each_value_counts_also_one_that_is_nothing(values, count):
    batch = pyarrow.RecordBatch.from_pydict({"x": array(values)})
    assert size(batch) - batch.nbytes == 8 * count
    doubled = pyarrow.RecordBatch.from_pydict({"x": array([values[0], *values])})
    assert size(doubled.slice(1)) - doubled.slice(1).nbytes == 8 * count, "of a part only the part"


def test_keys_and_values_of_a_map_count():
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    batch = pyarrow.RecordBatch.from_pydict({"x": array([[("a", 1)], [("b", 2), ("c", None)]], kind)})
    assert size(batch) - batch.nbytes == 8 * (2 + 6)
    assert size(batch.slice(1)) - batch.slice(1).nbytes == 8 * (1 + 4)


def test_of_a_file_with_a_limit_no_more_is_tried(tmp_path):
    path = written(tmp_path, array(["b"] * 4_000), row_group_size=1_000)
    tried: list[int] = []
    assert [batch.num_rows for batch in batches(path, 1_500, tried.append)] == [1_000, 1_000]
    assert tried == [0, 1]
    assert [place for place, _ in parquet_rows(path, 1_001)][-1] == f"{path} row 1001"
