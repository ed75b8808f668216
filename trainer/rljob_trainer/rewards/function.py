"""What all rewards are to the loop: judges, which turn responses into scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rljob_trainer.samples import Prompt


@dataclass(frozen=True, slots=True)
class Response:
    """A response to judge."""

    prompt: Prompt
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands for a score where a response could not be judged."""

    reason: str
    """who failed on which prompt, and how"""


Score = float | Failure


class Judge(Protocol):
    def __call__(self, responses: Sequence[Response]) -> Iterable[Score]:
        """Return one finite number or failure for each response, in order; responses to one prompt are neighbours.

        Scores may come one by one, so that a caller can stop. Raises RewardError if nothing can be judged in this way,
        and AwayError if what judges is away for too long.
        """


@runtime_checkable
class EarlyJudge(Judge, Protocol):
    """A judge that can work while other responses are sampled."""

    def begin(self, responses: Sequence[Response]) -> Iterable[Score] | None:
        """Begin to judge all responses to one prompt, and return at once; None: not now, there is no room.

        May be called in any thread. The scores are as those of a call.
        """
