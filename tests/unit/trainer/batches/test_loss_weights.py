"""What each token of a step counts."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.reading.manifest import load
from rljob_trainer.batches.loss_weights import aggregation, by_constant, by_sample, by_token
from support.api.bad_manifests import table

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def total(weights: tuple[float, ...], lengths: list[int]) -> float:
    return sum(weight * length for weight, length in zip(weights, lengths, strict=True))


@given(lengths)
@pytest.mark.parametrize("weights", [by_token, by_sample])
def test_a_mean_has_weights_that_add_up_to_one(weights, lengths):
    assert total(weights(lengths), lengths) == pytest.approx(1.0)


@given(lengths)
def test_divided_by_a_constant_only_the_longest_responses_count_fully(lengths):
    assert total(by_constant(50, lengths), lengths) == pytest.approx(sum(lengths) / 50 / len(lengths))


def test_by_sample_a_long_sample_counts_as_much_as_a_short_one():
    short, long = by_sample([1, 9])
    assert short == pytest.approx(9 * long)


@given(lengths, st.data())
@pytest.mark.parametrize(
    "weights", [by_token, by_sample, partial(by_constant, 50)], ids=["token", "sample", "constant"]
)
def test_samples_that_are_kept_out_of_the_loss_do_not_change_the_weights_of_the_others(weights, lengths, data):
    places = data.draw(st.lists(st.integers(0, len(lengths)), max_size=5))
    with_others = list(lengths)
    for place in places:
        with_others.insert(place, 0)
    found = weights(with_others)
    assert [weight for weight, length in zip(found, with_others, strict=True) if length] == list(weights(lengths))
    assert {weight for weight, length in zip(found, with_others, strict=True) if not length} <= {0.0}


@pytest.mark.parametrize(
    "weights", [by_token, by_sample, partial(by_constant, 50)], ids=["token", "sample", "constant"]
)
def test_a_step_of_which_nothing_is_trained_on_divides_nothing_by_zero(weights):
    assert weights([0, 0]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "expected"), [("Token", (0.25, 0.25)), ("Sample", (0.5, 1 / 6)), ("Constant", (1 / 4096, 1 / 4096))]
)
def test_the_manifest_chooses(name, expected):

    text = table()["good"].replace("  reward:\n", f"  algorithm: {{lossBy: {name}}}\n  reward:\n")
    assert aggregation(load(text).spec)([1, 3]) == pytest.approx(expected)
