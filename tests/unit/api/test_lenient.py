"""What can be read of a manifest that is refused."""

from typing import Any

import pytest

from rljob_api.reading.lenient import STAND_INS, readable
from rljob_api.sections import Spec
from support.operator.operator_world import raw_job


def manifest(**sections: Any) -> dict[str, Any]:
    raw = raw_job(**sections)
    return {**raw, "metadata": {"name": raw["metadata"]["name"]}}


def test_a_broken_rule_leaves_nothing_out():
    found = readable(manifest(rollout={"promptsPerStep": 5}, training={"stepsPerRollout": 3}))
    assert found.left_out == ()
    assert found.spec.rollout.prompts_per_step == 5


@pytest.mark.parametrize(
    ("sections", "left_out"),
    [
        ({"training": {"unknown": 1}}, [("spec", "training", "unknown")]),
        ({"recovery": {"driverRestarts": -1}}, [("spec", "recovery", "driverRestarts")]),
        ({"runtime": {"volumes": [{"name": "a"}, 7]}}, [("spec", "runtime", "volumes")]),
        ({"unknown": {}, "recovery": 3}, [("spec", "recovery"), ("spec", "unknown")]),
    ],
)
def test_only_what_is_wrong_is_left_out(sections, left_out):
    found = readable(manifest(**sections))
    assert sorted(found.left_out) == left_out
    assert found.spec.rollout.engines == 2


def test_seconds_with_a_point_are_rounded_and_nothing_is_left_out():
    found = readable(manifest(recovery={"healthIntervalSeconds": 0.5, "graceSeconds": 2.6}))
    assert found.left_out == ()
    assert (found.spec.recovery.health_interval_seconds, found.spec.recovery.grace_seconds) == (1, 3)


def test_options_in_an_older_spelling_are_taken_and_nothing_is_left_out():
    found = readable(manifest(reward={"kind": "exactMatch"}, rollout={"routerPolicy": "cache_aware"}))
    assert found.left_out == ()
    assert (found.spec.reward.kind, found.spec.rollout.router_policy) == ("ExactMatch", "CacheAware")


def test_another_option_is_left_out():
    assert readable(manifest(rollout={"routerPolicy": "Rndom"})).left_out == (("spec", "rollout", "routerPolicy"),)


@pytest.mark.parametrize("section", sorted(STAND_INS))
def test_a_required_section_that_is_wrong_gets_a_stand_in(section):
    found = readable(manifest(**{section: "wrong"}))
    assert found.left_out == (("spec", section),)


def test_every_required_section_has_a_stand_in():
    required = {field.alias or name for name, field in Spec.model_fields.items() if field.is_required()}
    assert set(STAND_INS) == required


@pytest.mark.parametrize(
    "wrong",
    [
        {"apiVersion": "rljob.dev/v9"},
        {"spec": 7},
        {"metadata": {"name": 7}},
        {"metadata": {"name": "sums", "namespace": 7}},
    ],
)
def test_an_object_of_another_kind_cannot_be_read(wrong):
    assert readable({**manifest(), **wrong}) is None
