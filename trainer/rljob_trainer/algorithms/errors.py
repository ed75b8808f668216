from rljob_api.errors import RunError
from rljob_api.exits import Exit


class AlgorithmError(RunError, ValueError):
    """The algorithm that the manifest names cannot be loaded; the text says why."""

    exit = Exit.BAD_INPUT
    proven_by_steps = True
