"""The experts of a rollout need engines, and samples that have just come from them."""

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse

FIELD = "spec.training.experts.replay"


def judged(good: str, replay: str, **sections: object) -> list[str]:
    """Return what is said of the field."""
    content = yaml.safe_load(good)
    content["spec"]["training"]["experts"] = {"replay": replay}
    content["spec"] |= sections
    try:
        parse(content)
    except ManifestError as error:
        return [str(problem) for problem in error.problems if problem.field == FIELD]
    return []


def test_the_experts_of_a_rollout_can_be_used_with_any_number_of_updates(good):
    assert judged(good, "Rollout") == []
    (said,) = judged(good, "Learner")
    assert said.endswith("nearest valid: Rollout")


def test_without_engines_there_are_none(good):
    (said,) = judged(good, "Rollout", algorithm={"name": "sft"})
    assert "sft learns the data's own responses; leave it out" in said


@pytest.mark.parametrize(("replay", "number"), [("Rollout", 1), ("Learner", 0)])
def test_kept_samples_have_none(good, replay, number):
    content = yaml.safe_load(good)["spec"]["training"] | {"stepsPerRollout": 2, "experts": {"replay": replay}}
    content.pop("globalBatchSize", None)
    assert len(judged_of(good, content)) == number


def judged_of(good: str, training: dict[str, object]) -> list[str]:
    content = yaml.safe_load(good)
    content["spec"] |= {"training": training, "debug": {"replay": "runs/x"}}
    try:
        parse(content)
    except ManifestError as error:
        return [str(problem) for problem in error.problems if problem.field == FIELD]
    return []
