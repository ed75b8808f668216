"""Of the rules of batches exactly one does not hold where no batches can be derived."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rljob_api.reading.manifest import load
from rljob_api.rules import batches
from rljob_api.sections import Spec
from rljob_api.sizing.batch import derive, request
from support.api.bad_manifests import table

GOOD = load(table()["good"]).spec
numbers = some.none() | some.integers(1, 40)


def spec_with(section: str, **values: int | None) -> Spec:
    return GOOD.model_copy(update={section: getattr(GOOD, section).model_copy(update=values)})


@given(
    prompts=some.integers(1, 40),
    samples=some.integers(2, 8),
    gpus=some.integers(1, 8),
    size=numbers,
    steps=numbers,
)
def test_one_rule_is_broken_where_nothing_can_be_derived_and_else_none(prompts, samples, gpus, size, steps):
    rollout = GOOD.rollout.model_copy(update={"prompts_per_step": prompts, "samples_per_prompt": samples})
    trained = {"gpus_per_node": gpus, "global_batch_size": size, "steps_per_rollout": steps}
    spec = spec_with("training", **trained).model_copy(update={"rollout": rollout})

    found = [problem for rule in batches.RULES for problem in rule(spec)]

    assert len(found) == (derive(request(spec)) is None)
    assert all(problem.value in (prompts, size, steps) for problem in found)


@pytest.mark.parametrize(("gpus", "fits"), [(255, True), (256, True), (257, False)])
def test_each_rank_needs_one_sample(gpus, fits):
    assert batches.batches_fit.of(spec_with("training", gpus_per_node=gpus)) is fits
