"""Chooses the algorithm that the manifest names: one of ours by its name, a user's by `module:object`."""

import importlib
from collections.abc import Mapping
from typing import Any

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, Make
from rljob_trainer.algorithms.cispo import cispo
from rljob_trainer.algorithms.errors import AlgorithmError
from rljob_trainer.algorithms.grpo import grpo
from rljob_trainer.algorithms.gspo import gspo
from rljob_trainer.algorithms.reinforce_plus_plus import reinforce_plus_plus
from rljob_trainer.algorithms.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from rljob_trainer.algorithms.rloo import rloo

REGISTERED: Mapping[str, Make] = {
    "grpo": grpo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "reinforcePlusPlus": reinforce_plus_plus,
    "reinforcePlusPlusBaseline": reinforce_plus_plus_baseline,
}
"""what each name of `rljob_api.algorithms.KNOWN` stands for"""


def algorithm(settings: sections.Algorithm) -> Algorithm:
    """Return what `settings.name` stands for. Raises AlgorithmError if it cannot be loaded, or is no algorithm."""
    name = settings.name
    make = REGISTERED[name] if name in REGISTERED else load(name)
    if not callable(make):
        raise AlgorithmError(f"algorithm.name {name} is {make!r:.100}; a function of the settings is wanted")
    try:
        made = make(settings)
    except Exception as error:
        raise AlgorithmError(f"algorithm.name {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Algorithm):
        raise AlgorithmError(f"algorithm.name {name} returned {made!r:.100}; an Algorithm is wanted")
    return made


def load(path: str) -> Any:
    """Return the object that `module:object` names. Raises AlgorithmError."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise AlgorithmError(f"{path}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        names = ", ".join(name for name in vars(module) if not name.startswith("_"))
        raise AlgorithmError(f"{path}: {module_name} has no {attribute}; it has {names}")
    return getattr(module, attribute)
