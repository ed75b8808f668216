"""What engines are told of the weights that they will get, and learners of what engines were told."""

import json
from pathlib import Path
from typing import Any

from rljob_api.sections import Spec
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.quantised import of_model
from rljob_api.sizing.quantised import quantization_config as config_of


def quantization_config(spec: Spec, model: Path) -> dict[str, Any] | None:
    """Return the entry of `config.json` that engines of the checkpoint in `model` start with; None: there is none."""
    if spec.rollout.quantization is None:
        return None
    return config_of(shape(json.loads((model / "config.json").read_text())))


def left_alone(spec: Spec, model: Path) -> tuple[str, ...] | None:
    """Return the modules that are not quantised although they are matrices; None: nothing is quantised."""
    if spec.rollout.quantization is None:
        return None
    return of_model(shape(json.loads((model / "config.json").read_text())))
