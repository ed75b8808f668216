"""All rules between the fields of a spec, in the order in which their problems are listed."""

from itertools import chain

from rljob_api.errors import Problem, first_problems
from rljob_api.rules import (
    algorithm,
    checkpoint,
    data,
    model,
    placement,
    pods,
    reward,
    rollout,
    runtime,
    sft,
    training,
    watch,
)
from rljob_api.rules.claims import Rule
from rljob_api.sections import Spec

RULES: tuple[Rule, ...] = (
    *model.RULES,
    *data.RULES,
    *reward.RULES,
    *algorithm.RULES,
    *sft.RULES,
    *rollout.RULES,
    *training.RULES,
    *placement.RULES,
    *watch.RULES,
    *checkpoint.RULES,
    *runtime.RULES,
    *pods.RULES,
)


def check(spec: Spec) -> tuple[Problem, ...]:
    """Return the first problems between the fields of a spec."""
    return first_problems(chain.from_iterable(rule(spec) for rule in RULES))
