"""The descriptions of weights for engines, and for learners what engines know of them."""

import json
from pathlib import Path
from typing import Any

from rljob_api.sections import Replay, Spec
from rljob_api.sizing.model_shape import Shape, shape
from rljob_api.sizing.quantised import Quantised, of_model
from rljob_api.sizing.quantised import quantization_config as config_of


def quantization_config(spec: Spec, model: Path) -> dict[str, Any] | None:
    """Return the entry of `config.json` that engines of the checkpoint in `model` start with; None: there is none."""
    return None if (how := quantised(spec, model)) is None else config_of(how)


def quantised(spec: Spec, model: Path) -> Quantised | None:
    """Return how the weights of the checkpoint in `model` are quantised for engines; None: they are not."""
    return None if (kind := spec.rollout.quantization) is None else of_model(kind, shape_of(model))


def choices(spec: Spec, model: Path) -> int:
    """Return how many experts of all layers a token of the model is sent to, if updates use those of the rollout; else
    0."""
    if spec.training.experts.replay is not Replay.ROLLOUT:
        return 0
    of_model = shape_of(model)
    return of_model.layers * of_model.experts_per_token


def shape_of(model: Path) -> Shape:
    """Return the sizes of the model in a directory."""
    return shape(json.loads((model / "config.json").read_text()))
