"""The policy loss, against reference values of verl 0.9.1 in fp64."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling, Kl
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives.clip import clip
from rljob_trainer.learners.rank.loss.loss import Targets, kl_estimate, policy_loss
from rljob_trainer.learners.rank.loss.reduction import TABLE, Sums

OLD = torch.tensor(
    [[-1, -.5, -2, -.1, -3], [-.7, -1.2, -.3, -2.5, -.9], [-1.5, -.2, -.8, -1.1, -.4], [-.6, -2.2, -1.3, -.05, -1.7]]
).double()  # fmt: skip
NEW = OLD + torch.tensor(
    [[.1, -.3, .05, .4, -.2], [.25, -.05, -.6, .15, .02], [-.15, .35, 1.5, -.1, .08], [.3, -.4, .2, -.02, .12]]
).double()  # fmt: skip
REFERENCE = OLD + torch.tensor(
    [[.05, -.1, .2, -.05, 0], [.1, .3, -.2, 0, 0], [-.2, 0, 0, .15, -.05], [.02, -.03, .04, -.05, .06]]
).double()  # fmt: skip
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
ADVANTAGES = torch.tensor([0.707106, -0.707106, -0.707106, 0.707106]).double()[:, None].expand(4, 5)
LENGTHS = MASK.sum(1, keepdim=True).expand(4, 5)
TOKEN_MEAN = torch.full((4, 5), 1 / 15).double()
SAMPLE_MEAN = 1 / (4 * LENGTHS.double())


def targets(weights: torch.Tensor, off_policy: bool = True) -> Targets:
    return Targets(
        advantages_R=ADVANTAGES[MASK],
        weights_R=weights[MASK],
        sequences_R=torch.arange(4)[:, None].expand(4, 5)[MASK],
        num_sequences=4,
        engine_logprobs_R=OLD[MASK] + 0.5,
        old_logprobs_R=OLD[MASK] if off_policy else None,
        reference_logprobs_R=REFERENCE[MASK],
    )


def clipped_loss(
    new: torch.Tensor, entropy: torch.Tensor, given: Targets, settings: LossSettings
) -> tuple[torch.Tensor, Sums]:
    return policy_loss(new, entropy, given, settings, clip)


@pytest.mark.parametrize(
    ("weights", "expected"), [(TOKEN_MEAN, -0.16841338), (SAMPLE_MEAN, -0.02454300)], ids=["token", "sample"]
)
def test_the_clipped_surrogate_is_that_of_verl(weights: torch.Tensor, expected: float) -> None:
    loss, sums = clipped_loss(NEW[MASK], torch.zeros(15), targets(weights), LossSettings(clip_low=0.2, clip_high=0.28))
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert sums["clip_fraction"].item() / sums["response_tokens"].item() == pytest.approx(0.2)
    assert sums["logprob_mismatch"].item() / sums["response_tokens"].item() == pytest.approx(0.5)


def test_its_gradient_is_that_of_verl() -> None:
    new = NEW[MASK].requires_grad_()
    loss, _ = clipped_loss(new, torch.zeros(15), targets(TOKEN_MEAN), LossSettings(clip_low=0.2, clip_high=0.28))
    (gradient,) = torch.autograd.grad(loss, new)
    assert gradient.sum().item() == pytest.approx(-0.08544628, abs=1e-6)
    assert gradient.norm().item() == pytest.approx(0.16556414, abs=1e-6)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", -0.024), ("k2", 0.029993), ("k3", 0.030994)])
def test_kl_estimates_and_their_weight_in_the_loss(estimator: str, expected: float) -> None:
    estimate = kl_estimate(NEW[MASK], REFERENCE[MASK], estimator, True)  # type: ignore[arg-type]  # a str
    assert estimate.mean().item() == pytest.approx(expected, abs=1e-6)
    kl = Kl(coefficient=0.5, estimator=estimator)  # type: ignore[arg-type]
    penalised, sums = clipped_loss(NEW[MASK], torch.zeros(15), targets(TOKEN_MEAN), LossSettings(kl=kl))
    assert sums["kl"].item() / sums["response_tokens"].item() == pytest.approx(expected, abs=1e-6)
    plain, _ = clipped_loss(NEW[MASK], torch.zeros(15), targets(TOKEN_MEAN), LossSettings())
    assert (penalised - plain).item() == pytest.approx(0.5 * expected, abs=1e-6)


def test_the_entropy_bonus_lowers_the_loss() -> None:
    settings = LossSettings(entropy_coefficient=0.1)
    with_bonus, sums = clipped_loss(NEW[MASK], torch.full((15,), 2.0).double(), targets(TOKEN_MEAN), settings)
    plain, _ = clipped_loss(NEW[MASK], torch.zeros(15), targets(TOKEN_MEAN), LossSettings())
    assert (with_bonus - plain).item() == pytest.approx(-0.2)
    assert sums["entropy"].item() == pytest.approx(30.0)


def test_an_entropy_that_is_not_computed_is_not_reported() -> None:
    _, sums = clipped_loss(NEW[MASK], torch.zeros(15), targets(TOKEN_MEAN), LossSettings(report_entropy=False))
    assert "entropy" not in sums and "surprise" in sums


def test_on_policy_the_ratio_is_one_and_the_gradient_is_the_advantage() -> None:
    new = NEW[MASK].requires_grad_()
    loss, sums = clipped_loss(new, torch.zeros(15), targets(TOKEN_MEAN, off_policy=False), LossSettings())
    (gradient,) = torch.autograd.grad(loss, new)
    assert sums["ratio"].item() == 15.0 and sums["clip_fraction"].item() == 0.0
    torch.testing.assert_close(gradient, -ADVANTAGES[MASK] / 15)


def test_tokens_without_weight_are_not_counted() -> None:
    weights = TOKEN_MEAN.clone()
    weights[0] = 0.0
    _, sums = clipped_loss(NEW[MASK], torch.ones(15), targets(weights), LossSettings())
    assert sums["response_tokens"].item() == sums["entropy"].item() == 11.0


@pytest.mark.parametrize("first", [True, False], ids=["first update", "later update"])
def test_the_ratio_may_be_that_to_the_engines_and_the_mismatch_stays_the_learner_s(first: bool) -> None:
    given = targets(TOKEN_MEAN, off_policy=not first)
    new, same = (NEW[MASK].clone().requires_grad_() for _ in range(2))
    loss, sums = clipped_loss(new, torch.zeros(15), given, LossSettings(old="engines"))
    wanted, others = clipped_loss(
        same, torch.zeros(15), replace(given, old_logprobs_R=given.engine_logprobs_R), LossSettings()
    )
    assert loss.item() == wanted.item()
    assert torch.equal(*(torch.autograd.grad(each, by)[0] for each, by in ((loss, new), (wanted, same))))
    assert (sums["ratio"], sums["clip_fraction"]) == (others["ratio"], others["clip_fraction"])
    learner = NEW[MASK] if first else OLD[MASK]
    assert sums["logprob_mismatch"].item() == pytest.approx((learner - given.engine_logprobs_R).abs().sum().item())


def test_decoupled_the_weight_corrects_from_the_engines_to_the_learner_and_the_ratio_stays_one() -> None:
    importance = ImportanceSampling(kind=ImportanceBound.TRUNCATE, level=ImportanceLevel.TOKEN, low=0.0, high=2.0)
    given = targets(TOKEN_MEAN, off_policy=False)
    new = NEW[MASK].clone().requires_grad_()
    loss, sums = clipped_loss(new, torch.zeros(15), given, LossSettings(importance=importance))
    (gradient,) = torch.autograd.grad(loss, new)
    weights = (NEW[MASK] - given.engine_logprobs_R).exp().clamp(max=2.0)
    torch.testing.assert_close(gradient, -ADVANTAGES[MASK] * weights / 15)
    assert sums["ratio"].item() == 15.0


def test_the_largest_mismatch_is_that_of_a_token_with_a_weight() -> None:
    weights = TOKEN_MEAN.clone()
    weights[0] = 0.0
    engine = OLD.clone()
    engine[0, 1], engine[1, 2], engine[2, 3] = OLD[0, 1] + 9.0, OLD[1, 2] - 3.0, OLD[2, 3] + 1.0
    _, sums = clipped_loss(
        NEW[MASK], torch.zeros(15), replace(targets(weights), engine_logprobs_R=engine[MASK]), LossSettings()
    )
    assert sums["max_mismatch"].item() == pytest.approx(3.0)
    assert sums["logprob_mismatch"].item() == pytest.approx(4.0)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
@given(logprobs=st.floats(-2.0, 2.0), advantage=st.floats(-3.0, 3.0).filter(lambda a: abs(a) > 1e-3))
def test_the_gradient_vanishes_exactly_where_the_advantage_would_push_beyond_a_bound(
    dual_clip: float | None, logprobs: float, advantage: float
) -> None:
    new = torch.tensor([logprobs], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64)
    one = Targets(torch.tensor([advantage]).double(), zero + 1, zero.long(), 1, zero, zero, None)
    settings = LossSettings(clip_low=0.2, clip_high=0.3, dual_clip=dual_clip)
    loss, sums = clipped_loss(new, zero, one, settings)
    (gradient,) = torch.autograd.grad(loss, new)
    ratio = math.exp(logprobs)
    stops = ratio > 1.3 if advantage > 0 else ratio < 0.8 or (dual_clip is not None and ratio > dual_clip)
    assert gradient.item() == pytest.approx(0.0 if stops else -ratio * advantage)
    assert sums["clip_fraction"].item() == stops


@given(st.lists(st.integers(0, 3), min_size=15, max_size=15))
def test_any_split_into_micro_batches_gives_the_same_loss_gradient_and_sums(places: list[int]) -> None:
    settings = LossSettings(entropy_coefficient=0.1, kl=Kl(coefficient=0.3), clip_high=0.28)
    whole, part_of, entropy = targets(SAMPLE_MEAN), torch.tensor(places), torch.linspace(0.1, 2.0, 15).double()
    together, apart = (NEW[MASK].clone().requires_grad_() for _ in range(2))
    loss, sums = clipped_loss(together, entropy, whole, settings)
    rows = [part_of == place for place in sorted(set(places))]
    parts = [
        clipped_loss(
            apart[row],
            entropy[row],
            Targets(
                whole.advantages_R[row],
                whole.weights_R[row],
                whole.sequences_R[row],
                4,
                whole.engine_logprobs_R[row],
                OLD[MASK][row],
                REFERENCE[MASK][row],
            ),
            settings,
        )
        for row in rows
    ]
    total = torch.stack([each for each, _ in parts]).sum()
    torch.testing.assert_close(total, loss)
    torch.testing.assert_close(torch.autograd.grad(total, apart), torch.autograd.grad(loss, together))
    combine = {name: max if TABLE[name].tokens == "largest" else sum for name in sums}
    combined = {name: combine[name](each[name].item() for _, each in parts) for name in sums}
    assert combined == pytest.approx({name: value.item() for name, value in sums.items()})


def test_sums_carry_no_gradient_and_are_in_fp64() -> None:
    entropy = torch.ones(15, requires_grad=True)
    new = NEW[MASK].float().requires_grad_()
    settings = LossSettings(entropy_coefficient=0.1, kl=Kl(coefficient=0.3))
    importance = ImportanceSampling(kind=ImportanceBound.TRUNCATE, level=ImportanceLevel.TOKEN, low=0.0, high=2.0)
    _, sums = clipped_loss(new, entropy, targets(TOKEN_MEAN), replace(settings, importance=importance))
    values = {name: (value.requires_grad, value.dtype) for name, value in sums.items()}
    assert values == dict.fromkeys(sums, (False, torch.float64))


WAYS = [
    LossSettings(
        old=old, importance=None if kind is None else ImportanceSampling(kind=kind, level=level, low=0.5, high=2.0)
    )
    for old in ("learner", "engines")
    for kind, level in [(None, ImportanceLevel.TOKEN), *itertools.product(ImportanceBound, ImportanceLevel)]
]


def gradient(given: Targets, settings: LossSettings) -> tuple[torch.Tensor, Sums]:
    new = NEW[MASK].clone().requires_grad_()
    loss, sums = clipped_loss(new, torch.zeros(15), given, settings)
    return torch.autograd.grad(loss, new)[0], sums


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("unknown", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("settings", WAYS)
def test_a_token_that_an_engine_knows_nothing_of_has_the_learner_s_probability(
    settings: LossSettings, unknown: float, first: bool
) -> None:
    given = targets(TOKEN_MEAN, off_policy=not first)
    lost, kept = given.engine_logprobs_R.clone(), given.engine_logprobs_R.clone()
    lost[3] = unknown
    kept[3] = (NEW if first else OLD)[MASK][3]
    slope_R, sums = gradient(replace(given, engine_logprobs_R=lost), settings)
    wanted_R, wanted = gradient(replace(given, engine_logprobs_R=kept), settings)
    assert torch.equal(slope_R, wanted_R) and bool(slope_R.isfinite().all())
    assert {name: value.tolist() for name, value in sums.items()} == {n: v.tolist() for n, v in wanted.items()}
