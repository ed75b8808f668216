"""The families of models that the learner can train, one file each.

mbridge imports all of its families at once, vision models among them: 6 s of a core in each rank. Its packages are
entered here without their `__init__`, so that a family of ours imports the one file that it builds on.
"""

import importlib.util
import sys


def _enter(package: str) -> None:
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        assert spec is not None, package
        sys.modules[package] = importlib.util.module_from_spec(spec)


for _package in ("mbridge", "mbridge.models"):
    _enter(_package)
