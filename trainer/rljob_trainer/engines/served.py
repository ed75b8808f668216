"""What comes of starting a server: one that answers, or an error. Both cross from the actor to the driver."""

from dataclasses import dataclass

from rljob_api.errors import RunError
from rljob_api.exits import Exit


class EngineStartError(RunError, RuntimeError):
    """An engine did not become ready; the message ends with the last lines of its log."""

    exit = Exit.LOST_PEER


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    url: str
    pid: int
    seconds: float
    """from the order to the first healthy answer [s]"""
