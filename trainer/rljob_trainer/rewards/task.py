"""The verifier of the reasoning-gym task that made the question. The row carries what is needed to build it."""

import logging
from collections.abc import Sequence

from rljob_trainer.data.procedural import RECIPE, verifier
from rljob_trainer.rewards.function import Failure, Response, Score

log = logging.getLogger(__name__)


def task_score(responses: Sequence[Response]) -> list[Score]:
    """Return the verifier's score of each response, usually between 0 and 1; a failure for a row without a task."""
    return [_score(response) for response in responses]


def _score(response: Response) -> Score:
    row = dict(response.prompt.metadata)
    if RECIPE not in row:
        return Failure(
            f"prompt {response.prompt.uid}: reward.kind Task judges questions from data.*.reasoningGym; "
            f"the row has {', '.join(map(str, row)) or 'nothing'}"
        )
    try:
        return float(verifier(row[RECIPE])(response.text, row))
    except Exception as error:  # noqa: BLE001
        # Some of reasoning-gym's verifiers raise on a response that is not even of the right form: it is wrong.
        log.warning("action=score_zero prompt=%s reason=%r", response.prompt.uid, error)
        return 0.0
