"""What all rewards are to the loop: a function from responses to numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_trainer.samples import Prompt


@dataclass(frozen=True, slots=True)
class Response:
    """A response to judge."""

    prompt: Prompt
    text: str


class RewardFunction(Protocol):
    def __call__(self, responses: Sequence[Response]) -> Sequence[float]:
        """Return one number for each response, in order. Raises RewardError."""
