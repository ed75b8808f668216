"""What engines are told of the weights that they will get, and learners of what engines were told."""

import json
from pathlib import Path
from typing import Any

from rljob_api.sections import Spec
from rljob_api.sizing.model_shape import Shape, shape
from rljob_api.sizing.quantised import of_model
from rljob_api.sizing.quantised import quantization_config as config_of


def quantization_config(spec: Spec, model: Path) -> dict[str, Any] | None:
    """Return the entry of `config.json` that engines of the checkpoint in `model` start with; None: there is none."""
    return None if spec.rollout.quantization is None else config_of(_shape(model))


def left_alone(spec: Spec, model: Path) -> tuple[str, ...] | None:
    """Return the modules that are not quantised although they are matrices; None: nothing is quantised."""
    return None if spec.rollout.quantization is None else of_model(_shape(model))


def _shape(model: Path) -> Shape:
    return shape(json.loads((model / "config.json").read_text()))
