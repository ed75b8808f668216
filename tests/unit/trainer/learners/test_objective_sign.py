"""An objective that trains the wrong way is refused before it trains."""

import pytest

from rljob_trainer.algorithms.algorithm import CISPO, GSPO, LIKELIHOOD
from rljob_trainer.learners.config import CLIP, LossSettings
from rljob_trainer.learners.errors import ObjectiveError
from rljob_trainer.learners.objectives.objective import Responses, Surrogate, load, require_sign


def flipped(responses: Responses, settings: LossSettings) -> Surrogate:
    ratio_R = (responses.logprobs_R - responses.old_logprobs_R).exp()
    return Surrogate(ratio_R * responses.advantages_R, ratio_R, ratio_R > 2)


@pytest.mark.parametrize("path", [CLIP, GSPO, CISPO, LIKELIHOOD])
@pytest.mark.parametrize("changes", [{}, {"dual_clip": 3.0}, {"clip_low": 0.0, "clip_high": 0.0}])
def test_objectives_of_ours_make_better_responses_likelier(path: str, changes: dict[str, float]):
    require_sign(load(path), LossSettings(objective=path, **changes))


def test_an_objective_without_its_sign_is_refused_by_name():
    with pytest.raises(ObjectiveError, match=r"mine:flipped: the loss of a token with advantage 1 grows"):
        require_sign(flipped, LossSettings(objective="mine:flipped"))
