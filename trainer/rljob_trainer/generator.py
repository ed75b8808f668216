"""What makes samples, as rollouts see it: the router in front of the engines, or a function that asks them."""

from typing import Protocol

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_api.sections import Sampling
from rljob_trainer.samples import Prompt, Sample

RETRY_PAUSE_S = 0.2
"""before a request that failed is sent again [s]"""


class Generator(Protocol):
    """Continues prompts."""

    async def generate(self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        """Return `num_samples` continuations; raise GenerationFailedError when the request must be sent again."""


class GenerationFailedError(RuntimeError):
    """A request was not answered; another engine may answer it."""


class RolloutTimeoutError(RunError, RuntimeError):
    """No engine answered any prompt before the deadline."""

    exit = Exit.LOST_PEER
