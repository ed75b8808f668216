"""Functions that a manifest names as `module:name`: looked for, and none of their code is run."""

import os
import pkgutil
import re
import shutil
import symtable
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from rljob_api import algorithms
from rljob_api.errors import Problem
from rljob_api.rules.names import closest
from rljob_api.rules.reward import judgings
from rljob_api.sections import TOOLS, Spec
from rljob_trainer.preflight.findings import Findings, total

UNFORESEEABLE = re.compile(r"import \*|\b(globals|vars|setattr|exec|__getattr__)\b")
"""a module whose text has this may have names that its text does not show"""
ALIKE = 0.75
"""of the name of a module that is proposed: hundreds are installed, and few are meant"""


def look_at_functions(spec: Spec, here: bool) -> Findings:
    """Look for the functions that a run of this manifest would call; `here`: it will be on this machine."""
    search_path = [*working_path(spec), *sys.path]
    found = [look_at_function(field, path, search_path, here) for field, path in functions(spec)]
    return total([*found, look_at_command(spec, here)])


def working_path(spec: Spec) -> list[str]:
    """Return what the processes of a run have in front of Python's own path."""
    return [str(Path.cwd()), *filter(None, spec.runtime.texts.get("PYTHONPATH", "").split(os.pathsep))]


def functions(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield field and `module:name` of each function that is the user's own and will be called."""
    if spec.algorithm.name not in algorithms.KNOWN and spec.debug.learner:
        yield "spec.algorithm.name", spec.algorithm.name
    if not spec.debug.engines:
        return
    for path, judging in judgings(spec):
        if judging.function:
            yield f"{path}.function", judging.function
    if spec.rollout.generate:
        yield "spec.rollout.generate", spec.rollout.generate
    if spec.rollout.agent and spec.rollout.agent.function:
        yield "spec.rollout.agent.function", spec.rollout.agent.function
    for index, tool in enumerate(spec.rollout.tools.functions if spec.rollout.tools else ()):
        if tool not in TOOLS:
            yield f"spec.rollout.tools.functions[{index}]", tool


def look_at_command(spec: Spec, here: bool) -> Findings:
    """Look for the program of an agent; in a cluster it is in an image."""
    agent = spec.rollout.agent
    if agent is None or not agent.command or not here or not spec.debug.engines:
        return Findings()
    if shutil.which(agent.command[0], path=spec.runtime.texts.get("PATH")) is not None:
        return Findings()
    return Findings(
        (Problem("spec.rollout.agent.command", list(agent.command), "is not a program that can be executed here"),)
    )


def look_at_function(field: str, path: str, search_path: Sequence[str], here: bool) -> Findings:
    module, _, name = path.partition(":")
    spec = find(module, search_path)
    if spec is None:
        if not here:
            return Findings(elsewhere=(f"module {module}",))
        rule = f"is not there: no module {module} in {search_path[0]}, on PYTHONPATH, or installed"
        near = closest(module, modules(search_path), cutoff=ALIKE)
        return Findings((Problem(field, path, rule, near and f"{near}:{name}"),))
    loader = spec.loader
    text = loader.get_source(module) if isinstance(loader, InspectLoader) else None
    try:
        names = names_in(text or "", str(spec.origin))
    except SyntaxError as error:
        rule = f"cannot be imported: {spec.origin}, line {error.lineno}: {error.msg}"
        return Findings((Problem(field, path, rule),))
    if text is None or names is None or name in names:
        return Findings()
    rule = f"is not there: {spec.origin} has no {name}"
    near = closest(name, tuple(sorted(names)))
    return Findings((Problem(field, path, rule, near and f"{module}:{near}"),))


def modules(search_path: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the modules that could be imported."""
    return tuple(sorted({module.name for module in pkgutil.iter_modules(search_path)}))


def find(module: str, search_path: Sequence[str]) -> ModuleSpec | None:
    """Return what Python would import, without importing packages on the way there, as `importlib` would."""
    found, where = None, search_path
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        found = PathFinder.find_spec(name, where) or (by_other_finders(name) if end == 1 else None)
        if found is None:
            return getattr(sys.modules.get(module), "__spec__", None)  # a module may make others, as os makes os.path
        where = list(found.submodule_search_locations or ())
    return found


def by_other_finders(name: str) -> ModuleSpec | None:
    """Return what is built into Python, or installed in another way."""
    specs = (finder.find_spec(name, None) for finder in sys.meta_path if finder is not PathFinder)
    return next((spec for spec in specs if spec), None)


def names_in(text: str, file: str) -> set[str] | None:
    """Return the names that a module defines at its top level; None if they cannot be known. Raises SyntaxError."""
    if UNFORESEEABLE.search(text):
        return None
    symbols = symtable.symtable(text, file, "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
