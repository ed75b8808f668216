"""Where a manifest asks for more than a model can give: of its layout, its context, or its quantised engines."""

from rljob_api.errors import Problem
from rljob_api.sections import Spec
from rljob_api.sizing import model_shape, quantised
from rljob_api.sizing.model_shape import Shape


def misfits(model: Shape, spec: Spec) -> tuple[Problem, ...]:
    """Return all that a model of this shape does not allow of a valid spec."""
    return (*model_shape.problems(model, spec), *quantised.problems(model, spec))
