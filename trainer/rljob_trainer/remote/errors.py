"""What a store says no with, and what it means for a run."""

from rljob_api.errors import RunError
from rljob_api.exits import Exit


class RemoteError(RunError):
    """A reference to a store cannot be used; the text names the URL, what the server said, and what to do."""

    exit = Exit.BAD_INPUT


class NotThereError(RemoteError):
    """The store answers, and has no such object."""


class ChangedError(RemoteError):
    """An object is another one than when it was first looked at."""


class DamagedObjectError(RemoteError):
    """An object does not have the checksum that the store keeps for it."""


class RemoteAwayError(RemoteError):
    """The store cannot be reached now; a later start can succeed."""

    exit = Exit.AWAY
