"""Objects of users that a manifest names as `module:name`."""

import importlib
from typing import Any


class NotThereError(LookupError):
    """The named object cannot be loaded; the message lists what the module has."""


def load(path: str) -> Any:
    """Return the object that `module:name` names; what its module does at import is done. Raises NotThereError."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise NotThereError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        there = ", ".join(each for each in vars(module) if not each.startswith("_"))
        raise NotThereError(f"{module_name} has no {name}; it has {there}")
    return getattr(module, name)
