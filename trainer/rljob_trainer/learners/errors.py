"""What can go wrong with a learner. No torch: the driver knows these without loading it."""


class LearnerError(RuntimeError):
    """A rank raised an error; the text holds its traceback."""


class LearnerLostError(RuntimeError):
    """The process of a rank is gone."""


class LearnerStalledError(TimeoutError):
    """The ranks did not answer before the deadline."""


class TrainingDivergedError(LearnerError):
    """More optimizer steps had a gradient that is not finite than the manifest allows."""


class UnsupportedModelError(ValueError):
    """The checkpoint or the layout cannot be trained; the message says what can."""


class CheckpointFormatError(ValueError):
    """A checkpoint is not of the format that this version reads; the message says what is."""


class CriticMismatchError(ValueError):
    """A checkpoint holds a critic and the learner has none, or the other way round."""


class LinkError(RuntimeError):
    """Ranks do not reach each other; the text names them."""
