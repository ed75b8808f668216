"""The error that a driver's log ends with, for a driver that could not report it."""

import logging

import pytest

from rljob_cli.run.driver import last_error
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
def test_an_error_is_reported_without_its_stack(message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert last_error(logged(message, caplog)) == f"DataError: {message}"


def test_a_diagnosis_after_the_error_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = logged("row 3", caplog)
    line = "2026-11-22 10:00:00,000 ERROR rljob_trainer.driver action=diagnose failure=DiskFull seen=a.log: full"
    assert last_error(f"{log}{line}\n") == "DataError: row 3"


def test_an_error_that_was_not_the_end_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    logged("row 3", caplog)
    logging.error("action=leave")
    assert last_error(caplog.text) is None


@pytest.mark.parametrize("log", ["", "2026-11-22 10:00:00,000 INFO driver action=begin\n"])
def test_a_log_without_errors_shows_none(log: str) -> None:
    assert last_error(log) is None
