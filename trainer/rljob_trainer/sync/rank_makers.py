"""Makes what a Ray actor of the learner holds. The driver names these functions, and only the actors call them: the
imports within load torch and Megatron there.
"""

import warnings
from typing import Any


def publishing_rank(**arguments: Any) -> Any:
    """Make a rank that can publish, in its actor: the driver itself need not load Megatron."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Megatron misses Apex and Transformer Engine, and says so often
        from rljob_trainer.sync.rank.rank import PublishingRank

    return PublishingRank(**arguments)


def checkpoint_files(**arguments: Any) -> Any:
    """Make what stands for the learner where nothing is trained, in its actor: the driver need not load torch."""
    from rljob_trainer.sync.rank.files import CheckpointFiles

    return CheckpointFiles(**arguments)
