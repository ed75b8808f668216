"""Errors in the data that a manifest names, in words for its author."""

from rljob_api.errors import RunError
from rljob_api.exits import Exit


class DataError(RunError):
    """Questions cannot be used; the text says which row, what was wanted and what was found."""

    exit = Exit.BAD_INPUT
