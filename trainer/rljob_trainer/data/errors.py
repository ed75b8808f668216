"""What is wrong with the questions that a manifest names, told to the person who wrote them."""


class DataError(Exception):
    """Questions cannot be used; the text says which row, what was wanted and what was found."""
