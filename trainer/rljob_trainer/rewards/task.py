"""The verifier of the reasoning-gym task that made the question. The row carries what is needed to build it."""

from collections.abc import Sequence

from rljob_trainer.data.procedural import RECIPE, verifier
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Response


def task_score(responses: Sequence[Response]) -> list[float]:
    """Return the verifier's score of each response, usually between 0 and 1."""
    return [_score(response) for response in responses]


def _score(response: Response) -> float:
    row = dict(response.prompt.metadata)
    if RECIPE not in row:
        raise RewardError(
            f"prompt {response.prompt.uid}: reward.kind task judges questions from data.*.reasoningGym; "
            f"the row has {', '.join(map(str, row)) or 'nothing'}"
        )
    return float(verifier(row[RECIPE])(response.text, row))
