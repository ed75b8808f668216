"""Single objectives where a whole batch would hide a mistake: gradients of one token, and what counts as clipped."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.objectives.cispo import cispo
from rljob_trainer.learners.objectives.gspo import gspo
from rljob_trainer.learners.objectives.likelihood import likelihood
from rljob_trainer.learners.objectives.objective import Responses
from rljob_trainer.learners.rank.loss.importance import correction

OLD = torch.tensor([-1.0, -2.0, -0.5, -1.5]).double()
MOVES = torch.tensor([0.1, -0.3, 0.5, 0.0]).double()
SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28)


def responses(advantages: list[float]) -> Responses:
    """Return two sequences of two tokens."""
    return Responses(
        logprobs_R=(OLD + MOVES).requires_grad_(),
        old_logprobs_R=OLD.clone(),
        advantages_R=torch.tensor(advantages).double(),
        counts_R=torch.ones(4).double(),
        sequences_R=torch.tensor([0, 0, 1, 1]),
        num_sequences=2,
    )


def test_gspo_gives_each_token_the_gradient_of_its_own_advantage() -> None:
    given = responses([1.0, 3.0, -1.0, -2.0])
    wide = replace(SETTINGS, clip_low=0.9, clip_high=0.9)
    (gradient,) = torch.autograd.grad(gspo(given, wide).loss_R.sum(), given.logprobs_R)
    ratio = torch.tensor([-0.1, -0.1, 0.25, 0.25]).double().exp()
    torch.testing.assert_close(gradient, -ratio * given.advantages_R)


def test_cispo_counts_the_tokens_whose_ratio_it_bounds() -> None:
    assert cispo(responses([1.0] * 4), SETTINGS).clipped_R.tolist() == [False, True, True, False]


@pytest.mark.parametrize("kind", ImportanceBound)
@pytest.mark.parametrize("level", ImportanceLevel)
def test_the_weights_of_a_correction_have_no_gradient(kind: ImportanceBound, level: ImportanceLevel) -> None:
    given = responses([1.0] * 4)
    on_policy = replace(given, old_logprobs_R=given.logprobs_R)
    corrected = correction(on_policy, OLD, ImportanceSampling(kind=kind, level=level, low=0.5, high=2.0))
    assert not corrected.weights_R.requires_grad


def test_a_likelihood_has_a_ratio_of_one_and_clips_nothing() -> None:
    given = responses([1.0] * 4)
    found = likelihood(given, SETTINGS)
    assert torch.equal(found.loss_R, -given.logprobs_R)
    assert (found.ratio_R.tolist(), found.clipped_R.tolist()) == ([1.0] * 4, [False] * 4)


tokens = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(-8, 8)), min_size=1, max_size=12)
"""sequence, whether the loss sees the token, value"""


@drawn(tokens, st.sampled_from([torch.float32, torch.float64]))
def test_sums_and_means_of_a_sequence_are_those_of_the_tokens_that_the_loss_sees(
    tokens: list[tuple[int, bool, int]], dtype: torch.dtype
) -> None:
    given = replace(
        responses([0.0] * 4),
        counts_R=torch.tensor([float(seen) for _, seen, _ in tokens]).double(),
        sequences_R=torch.tensor([sequence for sequence, _, _ in tokens]),
        num_sequences=4,
    )
    values_R = torch.tensor([value for _, _, value in tokens]).to(dtype)
    seen_S = [[value for at, seen, value in tokens if seen and at == sequence] for sequence in range(4)]
    sums = [float(sum(seen_S[at])) for at, _, _ in tokens]
    means = [sum(seen_S[at]) / max(1, len(seen_S[at])) for at, _, _ in tokens]
    assert (given.sums(values_R).dtype, given.sums(values_R).tolist()) == (dtype, sums)
    assert given.means(values_R).tolist() == pytest.approx(means)


def test_what_is_not_there_is_no_objective() -> None:
    path = "rljob_trainer.learners.objectives.clip:clap"
    with pytest.raises(ValueError, match=rf"^{path} is not a policy objective: .* has no clap"):
        objective.load(path)


def test_what_is_no_function_is_no_objective() -> None:
    path = "rljob_trainer.learners.objectives.trial:TOKENS"
    with pytest.raises(ValueError, match=rf"^{path} is not a policy objective: it is not a function$"):
        objective.load(path)
