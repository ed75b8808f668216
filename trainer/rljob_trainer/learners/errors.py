"""What can go wrong with a learner. No torch: the driver knows these without loading it."""

from rljob_api.errors import RunError
from rljob_api.exits import Exit


class LearnerError(RunError, RuntimeError):
    """A rank raised an error; the text holds its traceback."""

    exit = Exit.FAILED


class LearnerLostError(RunError, RuntimeError):
    """The process of a rank is gone."""

    exit = Exit.LOST_PEER


class LearnerStalledError(RunError, TimeoutError):
    """The ranks did not answer before the deadline."""

    exit = Exit.STALLED


class TrainingDivergedError(LearnerError):
    """More optimizer steps had a gradient that is not finite than the manifest allows."""

    exit = Exit.DIVERGED


class UnsupportedModelError(RunError, ValueError):
    """The checkpoint or the layout cannot be trained; the message says what can."""

    exit = Exit.BAD_INPUT


class CheckpointFormatError(RunError, ValueError):
    """A checkpoint is not of the format that this version reads; the message says what is."""

    exit = Exit.BAD_INPUT


class DamagedCheckpointError(RunError, RuntimeError):
    """What was read of a checkpoint is not what was written; the text names the file. An older one may be intact."""

    exit = Exit.FAILED


class CriticMismatchError(RunError, ValueError):
    """A checkpoint holds a critic and the learner has none, or the other way round."""

    exit = Exit.BAD_INPUT


class LinkError(RunError, RuntimeError):
    """Ranks do not reach each other; the text names them."""

    exit = Exit.LOST_PEER
