from rljob_api.errors import RunError
from rljob_api.exits import Exit


class TrackingError(RunError, ValueError):
    """What the manifest says about tracking cannot be done; the text says which field, and why."""

    exit = Exit.BAD_INPUT
