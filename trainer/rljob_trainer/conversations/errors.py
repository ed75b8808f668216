"""What is wrong with the making of a sample, told to the person who chose or wrote it."""


class GenerateError(Exception):
    """A sample cannot be made; the text names the function and the prompt."""


class ConversationOverError(Exception):
    """There is no room for another token. A generate function need not catch it: the sample ends here."""
