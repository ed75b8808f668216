"""A user's objective is tried before anything starts, and what is wrong with it is said."""

import pytest
import torch

from rljob_trainer.algorithms.algorithm import CISPO, CLIP, GSPO, LIKELIHOOD
from rljob_trainer.learners.config import LossSettings
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


def steep_at_one_token(responses, settings):
    root_R = (responses.logprobs_R - responses.logprobs_R.detach()[0]).abs().sqrt()  # its slope there is infinite
    return surrogate(root_R - responses.logprobs_R * responses.advantages_R, responses.logprobs_R)


def flipped_at_one_token(responses, settings):
    signs_R = torch.tensor([1.0, -1.0, -1.0, -1.0, -1.0, -1.0])
    return surrogate(signs_R * responses.logprobs_R * responses.advantages_R, responses.logprobs_R)


def nothing_near(responses, settings):
    return surrogate(responses.logprobs_R * settings.zzz, responses.logprobs_R)


def shortened(responses, settings):
    return surrogate(responses.logprobs_R * settings.low, responses.logprobs_R)


def dividing(responses, settings):
    return surrogate(responses.logprobs_R * (1 / 0), responses.logprobs_R)


def plain_numbers(responses, settings):
    return Surrogate(1.0, responses.logprobs_R, [False] * 6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (shortened, r"'low' \(test_objective_trial.py, line \d+\); nearest: clip_low$"),
        (nothing_near, r"'zzz' \(test_objective_trial.py, line \d+\)$"),
        (
            dividing,
            r"^failed on a trial: ZeroDivisionError: division by zero \(test_objective_trial.py, line \d+\)$",
        ),
        (plain_numbers, r"returned \{'loss_R': \(\), 'clipped_R': \(\)\} for 6 tokens; expected one value for each$"),
        (
            misspelt,
            r"failed on a trial: AttributeError: .*'clipLow' \(test_objective_trial.py, line \d+\); nearest: clip_low",
        ),
        (one_number, r"returned \{'loss_R': \(\)\} for 6 tokens; expected one value for each"),
        (no_surrogate, "returned Tensor; expected a Surrogate"),
        (untrained, r"^returned a loss that does not depend on logprobs_R: nothing would be trained$"),
        (
            flipped,
            r"^has a loss that grows with the log-probability of a token with advantage 1, so better responses would "
            r"become less likely; a loss is minimised: a sign is missing$",
        ),
        (infinite, r"^returned a loss or a gradient that is not finite for ordinary values$"),
        (steep_at_one_token, r"not finite for ordinary values"),
        (flipped_at_one_token, r"a sign is missing"),
    ],
)
def test_what_an_objective_does_wrong_is_named(function, message):
    with pytest.raises(ObjectiveError, match=message):
        tried(function, LossSettings())


@pytest.mark.parametrize(
    ("path", "changes"),
    [(CLIP, {}), (CLIP, {"dual_clip": 3.0}), (GSPO, {}), (CISPO, {"clip_low": 1.0}), (LIKELIHOOD, {})],
)
def test_an_objective_of_ours_passes(path, changes):
    tried(objective.load(path), LossSettings(objective=path, **changes))


def test_a_token_may_have_no_slope() -> None:
    """Where a bound clips the loss it has none."""

    def flat_at_one_token(responses, settings):
        seen_R = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        return surrogate(-seen_R * responses.logprobs_R * responses.advantages_R, responses.logprobs_R)

    tried(flat_at_one_token, LossSettings())


def test_the_tokens_of_a_trial_are_ordinary_ones_of_a_better_and_a_worse_sequence() -> None:
    given = []

    def recording(responses, settings):
        given.append((responses, settings))
        return surrogate(-responses.logprobs_R * responses.advantages_R, responses.logprobs_R)

    tried(recording, LossSettings(clip_low=0.3))
    ((responses, settings),) = given
    assert settings == LossSettings(clip_low=0.3)
    assert responses.advantages_R.tolist() == [1.0] * 3 + [-1.0] * 3
    assert (responses.sequences_R.tolist(), responses.num_sequences) == ([0] * 3 + [1] * 3, 2)
    assert responses.counts_R.tolist() == [1.0] * 6
    ends_R = responses.old_logprobs_R[[0, -1]]
    assert ends_R.tolist() == [-2.0, -0.5]
    moves_R = (responses.logprobs_R - responses.old_logprobs_R).detach()
    torch.testing.assert_close(moves_R, torch.tensor([-0.1, -0.06, -0.02, 0.02, 0.06, 0.1]))
