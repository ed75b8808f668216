"""promptsPerStep x samplesPerPrompt = globalBatchSize x stepsPerRollout, and what is suggested when it is not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import load
from rljob_api.sizing.batch import LEAST, MOST, Batch, Request, batch, derive, nearest, request

requests = some.builds(
    Request,
    prompts=some.integers(1, 600),
    samples_per_prompt=some.integers(2, 40),
    global_batch_size=some.none() | some.integers(1, 3000),
    steps_per_rollout=some.none() | some.integers(1, 200),
    data_parallel=some.integers(1, 64),
)


def broken(wanted: Request) -> bool:
    return derive(wanted) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Request(16, 8), Batch(16, 8, 128, 128, 1)),
        (Request(16, 8, steps_per_rollout=4), Batch(16, 8, 128, 32, 4)),
        (Request(16, 8, global_batch_size=32), Batch(16, 8, 128, 32, 4)),
        (Request(16, 8, global_batch_size=64, steps_per_rollout=2), Batch(16, 8, 128, 64, 2)),
        (Request(16, 8, steps_per_rollout=16, data_parallel=8), Batch(16, 8, 128, 8, 16)),
        (Request(16, 8, steps_per_rollout=3), None),
        (Request(16, 8, global_batch_size=48), None),
        (Request(16, 8, global_batch_size=256), None),
        (Request(16, 8, global_batch_size=64, steps_per_rollout=3), None),
        (Request(16, 8, steps_per_rollout=32, data_parallel=8), None),
    ],
)
def test_the_missing_number_is_derived(wanted, expected):
    assert derive(wanted) == expected


@given(requests.filter(lambda wanted: not broken(wanted)))
def test_no_sample_is_dropped_or_used_twice(wanted):
    derived = derive(wanted)

    assert derived.global_batch_size * derived.steps_per_rollout == derived.samples
    assert derived.samples == wanted.prompts * wanted.samples_per_prompt
    assert derived.global_batch_size >= wanted.data_parallel


@given(requests.filter(broken))
def test_every_suggestion_is_valid(wanted):
    mended = [replace(wanted, **change) for change in nearest(wanted)]

    assert all(derive(request) for request in mended)


@given(requests.filter(broken))
def test_every_suggestion_keeps_the_bounds_of_its_field(wanted):
    values = [(name, value) for change in nearest(wanted) for name, value in change.items()]

    assert all(LEAST[name] <= value <= MOST[name] for name, value in values)


@given(requests.filter(broken), some.sampled_from(sorted(LEAST)))
def test_no_value_of_one_field_that_would_do_is_closer_than_the_suggested_ones(wanted, name):
    now = getattr(wanted, name) or 0
    suggested = [change[name] for change in nearest(wanted) if len(change) == 1 and name in change]
    closest = min((abs(value - now) for value in suggested), default=200)
    closer = [value for value in range(max(LEAST[name], now - closest + 1), now + closest) if value != now]

    assert now == 0 or not any(derive(replace(wanted, **{name: value})) for value in closer)


def test_the_largest_batches_are_judged_at_once():
    assert nearest(Request(1_000_000, 9_999, steps_per_rollout=7))[0] == {"prompts": 999_999}


def test_a_batch_of_a_manifest_is_derived_from_its_topology(good):
    spec = load(good).spec

    assert batch(spec) == Batch(32, 8, 256, 256, 1)


def test_a_spec_that_was_never_checked_is_refused_too(good):
    spec = load(good).spec
    training = spec.training.model_copy(update={"steps_per_rollout": 3})

    with pytest.raises(ManifestError, match="does not divide"):
        batch(spec.model_copy(update={"training": training}))


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (Request(16, 8, 64, 3), ({"prompts": 24}, {"samples_per_prompt": 12}, {"steps_per_rollout": 2})),
        (Request(7, 3, 5, 4), ({"global_batch_size": 7, "steps_per_rollout": 3},)),
        (
            Request(16, 8, 48),
            (
                {"prompts": 12},
                {"prompts": 18},
                {"samples_per_prompt": 6},
                {"samples_per_prompt": 9},
                {"global_batch_size": 32},
                {"global_batch_size": 64},
            ),
        ),
        (Request(16, 8, 4, data_parallel=8), ({"global_batch_size": 8},)),
        (Request(16, 8, 4, 32, data_parallel=8), ({"global_batch_size": 8, "steps_per_rollout": 16},)),
        (
            Request(16, 8, steps_per_rollout=32, data_parallel=8),
            ({"prompts": 32}, {"samples_per_prompt": 16}, {"steps_per_rollout": 16}),
        ),
        (Request(2, 2, data_parallel=8), ({"prompts": 4}, {"samples_per_prompt": 4})),
        (Request(5, 1, data_parallel=8), ({"prompts": 8},)),
    ],
)
def test_the_smallest_changes_come_first(wanted, changes):
    assert nearest(wanted) == changes


def test_a_batch_that_cannot_be_divided_is_refused_in_words(good):
    spec = load(good).spec
    training = spec.training.model_copy(update={"steps_per_rollout": 3})
    with pytest.raises(ManifestError) as error:
        batch(spec.model_copy(update={"training": training}))
    assert str(error.value) == (
        "spec.rollout.promptsPerStep: 32 x samplesPerPrompt 8 does not divide into optimizer steps"
    )


def test_a_request_is_read_from_the_manifest(good):
    text = good.replace(
        "steps: 200", "steps: 200\n    globalBatchSize: 64\n    stepsPerRollout: 4\n    tensorParallel: 2"
    )
    assert request(load(text).spec) == Request(32, 8, 64, 4, data_parallel=4)


def test_the_data_has_one_response_to_each_prompt(good):
    text = good.replace("  reward:\n    kind: Math\n", "  algorithm: {name: sft}\n")
    text = text.replace("    samplesPerPrompt: 8\n", "").replace("    engines: 8\n", "")
    assert request(load(text).spec) == Request(32, 1, data_parallel=8)


def test_a_layout_that_does_not_fit_the_gpus_is_counted_as_one_rank(good):
    spec = load(good).spec
    training = spec.training.model_copy(update={"tensor_parallel": 16})
    assert request(spec.model_copy(update={"training": training})).data_parallel == 1
