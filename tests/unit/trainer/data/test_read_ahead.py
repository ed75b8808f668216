"""Rows are read before they are asked for, and what is taken is forgotten."""

from collections.abc import Sequence
from threading import Event, get_ident

import pytest

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.read_ahead import Held, ReadAhead


class Rows:
    """Rows that are their own numbers, and note who reads them."""

    def __init__(self) -> None:
        self.read_at_once: list[list[int]] = []
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return 9

    def read(self, rows: Sequence[int]) -> list[int]:
        self.read_at_once.append(list(rows))
        self.threads.add(get_ident())
        return list(rows)


def made(rows: Rows, make=lambda row: -row) -> ReadAhead[int]:
    return ReadAhead(rows, make)  # type: ignore[arg-type]


def test_what_is_expected_is_read_at_once_in_one_other_thread():
    rows = Rows()
    ahead = made(rows)
    ahead.expect([4, 2, 4])
    assert [ahead[2], ahead[4], ahead[7]] == [-2, -4, -7]
    assert rows.read_at_once == [[4, 2], [7]]
    assert len(rows.threads) == 1 and get_ident() not in rows.threads
    assert len(ahead) == 9


def test_to_expect_rows_waits_for_nothing_and_makes_them_meanwhile():
    may, done = Event(), Event()

    def make(row: int) -> int:
        may.wait(10)
        done.set()
        return row

    ahead = made(Rows(), make)
    ahead.expect([1])
    assert not done.is_set()
    may.set()
    assert done.wait(10)
    assert ahead[1] == 1


def test_what_is_being_read_is_not_read_again_and_what_was_taken_is():
    rows = Rows()
    ahead = made(rows)
    ahead.expect([1, 2])
    ahead.expect([2, 3])
    assert [ahead[2], ahead[3], ahead[2], ahead[1]] == [-2, -3, -2, -1]
    assert rows.read_at_once == [[1, 2], [3], [2], [1]]


def test_an_error_comes_to_who_asks():
    def make(row: int) -> int:
        raise DataError(f"q.jsonl:{row}: bad")

    ahead = made(Rows(), make)
    ahead.expect([5])
    with pytest.raises(DataError, match=r"q.jsonl:5: bad"):
        ahead[5]


def test_what_is_held_expects_nothing():
    held = Held("ab")
    held.expect([1])
    assert held == ("a", "b")
