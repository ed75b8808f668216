"""A test of many small rows: one item of pytest, whose failure names every wrong row."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_of(rows: Iterable[Any], name: Callable[[Any], object] = repr) -> Callable[[Callable[..., None]], Any]:
    """Return what makes one test of a function and a table: it is called with each row, and must fail with none.

    A function with several parameters gets the parts of a row. `parametrize` is for rows that need fixtures, take
    long, or must not see what another row has left.
    """
    table = list(rows)

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        takes_parts = len(inspect.signature(check).parameters) > 1

        def test() -> None:
            wrong = []
            for row in table:
                try:
                    check(*row) if takes_parts else check(row)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the failure has it, with its row
                    cause = f" from {error.__cause__!r}" if error.__cause__ else ""
                    wrong.append(f"{name(row)}: {type(error).__name__}: {error}{cause}")
            assert table, "the table has no rows"
            assert not wrong, f"{len(wrong)} of {len(table)} rows are wrong\n" + "\n".join(wrong)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
