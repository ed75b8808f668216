"""What is wrong with a reward, told to the person who chose or wrote it."""


class RewardError(Exception):
    """A reward cannot be loaded or computed; the text names the function and the row."""
