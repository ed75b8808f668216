"""Which fields of the training a run without a learner reads."""

import pytest
import yaml

from rljob_api.reading.manifest import parse
from rljob_api.rules import scope
from rljob_api.rules.terms import SPEC, Field, fields_of

READ = {
    "spec.training.steps": "the number of rollouts",
    "spec.training.gpusPerNode": "the size of a machine, on which engines are placed, too",
    "spec.training.precision": "the type of the engines' weights",
    "spec.training.optimizer.learningRate": "nothing, but it has no default: it is always there",
}
"""fields of `spec.training` that a run without a learner reads, and for what"""


def leaves(section: Field) -> list[Field]:
    found = [[field] if field.section is None else leaves(field) for field in fields_of(section)]
    return [leaf for each in found for leaf in each]


def test_every_field_of_the_training_is_read_without_a_learner_or_said_to_have_no_effect():
    without_effect = {field.at for field in scope.LEARNER_ONLY if field.at.startswith("spec.training.")}

    assert without_effect.isdisjoint(READ)
    assert without_effect | READ.keys() == {field.at for field in leaves(SPEC.training)}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("expertParallel", 2),
        ("expertTensorParallel", 2),
        ("recompute", "Full"),
        ("experts.balanceLoss", 0.01),
        ("experts.zLoss", 0.001),
        ("experts.biasUpdateRate", 0.001),
        ("optimizer.weightDecay", 0.1),
        ("optimizer.schedule", "Cosine"),
        ("optimizer.offload", True),
    ],
)
def test_what_needs_a_learner_is_reported_without_one(good, path, value):
    content = yaml.safe_load(good)
    section, _, name = path.rpartition(".")
    training = content["spec"]["training"]
    (training.setdefault(section, {}) if section else training)[name] = value
    assert scope.left_out(parse(content).spec) == ()

    content["spec"]["debug"] = {"rolloutOnly": True}
    assert scope.left_out(parse(content).spec) == (f"spec.training.{path}",)


def test_a_run_without_a_learner_reads_steps_and_precision(good):
    content = yaml.safe_load(good)
    content["spec"]["training"] |= {"precision": "fp32", "steps": 3}
    content["spec"]["debug"] = {"rolloutOnly": True}

    assert scope.left_out(parse(content).spec) == ()
