"""The error that a driver's log ends with, for a driver that could not tell it."""

import logging

import pytest

from rljob_cli.driver import last_error
from rljob_trainer.data.errors import DataError


def logged(message: str, capture: pytest.LogCaptureFixture) -> str:
    """Return what a driver's log has of an error that was caused by another."""
    capture.handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise DataError(message) from error
    except DataError:
        logging.exception("action=end")
    return capture.text


@pytest.mark.parametrize("message", ["row 3: has no answer", "two lines:\n  the second", "a: b.c: d"])
def test_an_error_is_told_without_its_stack(message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert last_error(logged(message, caplog)) == f"DataError: {message}"


def test_an_error_that_was_not_the_end_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    logged("row 3", caplog)
    logging.error("action=leave")
    assert last_error(caplog.text) is None


@pytest.mark.parametrize("log", ["", "2026-11-22 10:00:00,000 INFO driver action=begin\n"])
def test_a_log_without_errors_tells_none(log: str) -> None:
    assert last_error(log) is None
