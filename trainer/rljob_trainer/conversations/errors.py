"""Errors of generate functions and tools, in words for their author."""

from rljob_api.errors import RunError
from rljob_api.exits import Exit


class GenerateError(RunError):
    """A sample cannot be made; the text names the function and the prompt."""

    exit = Exit.BAD_INPUT
    proven_by_steps = True


class TooSlowError(GenerateError):
    """A generate function did not end in its time; another try would take as long."""


class ConversationOverError(Exception):
    """No token fits any more. A generate function need not catch this: the sample ends here."""
