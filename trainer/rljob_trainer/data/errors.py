"""Errors in the data that a manifest names, in words for its author."""


class DataError(Exception):
    """Questions cannot be used; the text says which row, what was wanted and what was found."""
