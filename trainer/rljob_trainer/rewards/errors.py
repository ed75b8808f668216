"""Errors of rewards, in words for their author."""

from rljob_api.errors import RunError
from rljob_api.exits import Exit


class RewardError(RunError):
    """A reward cannot be loaded or computed; the text names the function and the row."""

    exit = Exit.BAD_INPUT
    proven_by_steps = True
