"""`spec.runtime.env`: texts, and values that are elsewhere."""

from typing import Any

import pytest

from rljob_api.rules import registry
from rljob_api.sections import Spec
from support.operator.operator_world import raw_job

SECRET = {"name": "hub", "key": "token"}


def problems(env: Any, **more: Any) -> list[tuple[str, str | None]]:
    spec = Spec.model_validate(raw_job(runtime={"env": env}, **more)["spec"])
    return [(each.field.removeprefix("spec.runtime.env"), each.nearest) for each in registry.check(spec)]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "",
        {"valueFrom": {"secretKeyRef": SECRET}},
        {"valueFrom": {"secretKeyRef": {**SECRET, "optional": True}}},
        {"valueFrom": {"configMapKeyRef": SECRET}},
        {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['rljob.dev/job']", "apiVersion": "v1"}}},
    ],
)
def test_a_value_is_a_text_or_where_it_is(value: Any):
    assert problems({"A": value}) == []


@pytest.mark.parametrize(
    ("value", "where", "nearest"),
    [
        (1, ".A", '"1"'),
        (True, ".A", '"true"'),
        ([], ".A", None),
        ({}, ".A", None),
        ({"value": "x"}, ".A", None),
        ({"value": "x", "valueFrom": {"secretKeyRef": SECRET}}, ".A", None),
        ({"valueFrom": {}}, ".A", None),
        ({"valueFrom": {"secretKeyRef": SECRET, "configMapKeyRef": SECRET}}, ".A", None),
        ({"valueFrom": {"secretRef": SECRET}}, ".A.valueFrom", "secretKeyRef"),
        ({"valueFrom": {"secretKeyRef": {"name": "hub"}}}, ".A.valueFrom.secretKeyRef", None),
        ({"valueFrom": {"secretKeyRef": {"name": "hub", "key": ""}}}, ".A.valueFrom.secretKeyRef", None),
        ({"valueFrom": {"secretKeyRef": {**SECRET, "file": "x"}}}, ".A.valueFrom.secretKeyRef", None),
        ({"valueFrom": {"secretKeyRef": "hub"}}, ".A.valueFrom.secretKeyRef", None),
        (
            {"valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}},
            ".A.valueFrom.fieldRef.fieldPath",
            "metadata.name",
        ),
    ],
)
def test_anything_else_is_a_problem_at_its_place(value: Any, where: str, nearest: str | None):
    assert problems({"A": value}) == [(where, nearest)]


def test_a_key_for_a_tracker_may_come_from_a_secret_but_not_be_in_the_manifest():
    assert problems({"WANDB_API_KEY": {"valueFrom": {"secretKeyRef": SECRET}}}) == []
    assert problems({"WANDB_API_KEY": "0123"}) != []


def test_only_texts_have_values_on_one_machine():
    raw = raw_job(runtime={"env": {"A": "a", "B": {"valueFrom": {"secretKeyRef": SECRET}}}})
    assert Spec.model_validate(raw["spec"]).runtime.texts == {"A": "a"}
