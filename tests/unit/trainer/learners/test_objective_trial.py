"""A user's objective is tried before anything starts, and what is wrong with it is said."""

import pytest
import torch

from rljob_trainer.algorithms.algorithm import CISPO, GSPO, LIKELIHOOD
from rljob_trainer.learners.config import CLIP, LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.objectives.objective import Surrogate
from rljob_trainer.learners.objectives.trial import ObjectiveError, tried


def surrogate(loss_R, like_R):
    return Surrogate(loss_R, like_R, like_R > 0)


def misspelt(responses, settings):
    return surrogate(responses.logprobs_R * settings.clipLow, responses.logprobs_R)


def one_number(responses, settings):
    return surrogate(responses.logprobs_R.mean(), responses.logprobs_R)


def no_surrogate(responses, settings):
    return responses.logprobs_R


def untrained(responses, settings):
    return surrogate(-responses.advantages_R, responses.advantages_R)


def infinite(responses, settings):
    return surrogate(torch.log(responses.logprobs_R), responses.logprobs_R)


def flipped(responses, settings):
    return surrogate(responses.logprobs_R * responses.advantages_R, responses.logprobs_R)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            misspelt,
            r"failed on a trial: AttributeError: .*'clipLow' \(test_objective_trial.py, line \d+\); nearest: clip_low",
        ),
        (one_number, r"returned \{'loss_R': \(\)\} for 6 tokens; one value for each is wanted"),
        (no_surrogate, "returned Tensor; a Surrogate is wanted"),
        (untrained, r"does not depend on logprobs_R: nothing would be trained"),
        (flipped, r"grows with the log-probability of a token with advantage 1, .* a sign is missing"),
        (infinite, r"not finite for ordinary values"),
    ],
)
def test_what_an_objective_does_wrong_is_named(function, told):
    with pytest.raises(ObjectiveError, match=told):
        tried(function, LossSettings())


@pytest.mark.parametrize(
    ("path", "changes"),
    [(CLIP, {}), (CLIP, {"dual_clip": 3.0}), (GSPO, {}), (CISPO, {"clip_low": 1.0}), (LIKELIHOOD, {})],
)
def test_an_objective_of_ours_passes(path, changes):
    tried(objective.load(path), LossSettings(objective=path, **changes))
