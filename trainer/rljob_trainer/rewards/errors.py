"""Errors of rewards, in words for their author."""


class RewardError(Exception):
    """A reward cannot be loaded or computed; the text names the function and the row."""
