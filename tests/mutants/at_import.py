"""Judges mutants of packages that build their values when they are imported, such as the terms of rules, or once.

mutmut makes mutants of functions only, and switches one on when the function is called: too late for a value that is
there already, also for that of a cached function which a test calls when it is collected. Here each mutant, also one of
a statement outside functions, is written into the copy of its file, and a process that has imported nothing of ours
runs the tests.
"""

import difflib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from report import Mutant, Outcome
from workspace import Target, Workspace

PACKAGES = (
    "rljob_doctor.catalogue",
    "rljob_doctor.scan",
    "rljob_api.facts",
    "rljob_api.reading.field_lookup",
    "rljob_api.rules",
    "rljob_api.sizing.known_models",
)
TIMES_LONGER, MORE_S = 5, 30
"""how much longer than the tests without a mutant the tests of a mutant may compute: some mutants loop without end"""
IMPORTED_ONCE = ["hypothesis", "pydantic", "pytest", "yaml"]


Edit = Callable[[], tuple[Mutant, Path, str]]
"""makes one mutant: what it is, its file relative to the workspace, and the file's new text"""


def without(chosen: Target) -> Target:
    """Leave these packages out of one that holds them, and print that they are judged by themselves."""
    folders = {package: package.replace(".", "/") for package in PACKAGES}

    def is_in(module: str, folder: str) -> bool:
        return module == f"{folder}.py" or module.startswith(f"{folder}/")

    for package, folder in folders.items():
        if any(is_in(module, folder) for module in chosen.modules):
            print(f"without {package}, which is judged by itself")
    kept = [module for module in chosen.modules if not any(is_in(module, folder) for folder in folders.values())]
    return replace(chosen, modules=tuple(kept))


def edits(workspace: Workspace) -> list[Edit]:
    """Return all mutants. The working directory is the workspace's."""
    return [edit for file in workspace.files for edit in _edits_of(file)]


def _edits_of(file: Path) -> Iterator[Edit]:
    from mutmut.mutation.file_mutation import create_mutations

    before = file.read_text()
    tree, mutations, _, _ = create_mutations(str(file), before)
    yield from (partial(_edit, file, before, tree, number, each) for number, each in enumerate(mutations, 1))


def _edit(file: Path, before: str, tree: Any, number: int, mutation: Any) -> tuple[Mutant, Path, str]:
    from mutmut.mutation.file_mutation import deep_replace

    text = deep_replace(tree, mutation.original_node, mutation.mutated_node).code
    diff = difflib.unified_diff(before.splitlines(), text.splitlines(), str(file), str(file), lineterm="", n=0)
    module = ".".join(file.with_suffix("").parts[1:])
    return Mutant(f"{module}:{number}", module, "\n".join(diff)), file, text


def judge(workspace: Workspace, drawn: Sequence[Edit], verbose: bool) -> list[tuple[Mutant, Outcome]]:
    """Run the tests on each mutant. Raises SystemExit when they fail without one."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(IMPORTED_ONCE)

    def run(limit_s: int) -> int | None:
        environment = workspace.environment(os.environ)
        process = processes.Process(target=_test, args=(workspace, environment, limit_s, verbose))
        process.start()
        process.join()
        return process.exitcode

    began_s = time.monotonic()
    if run(resource.RLIM_INFINITY):
        raise SystemExit("the tests fail without a mutant; --verbose shows how")
    limit_s = int(TIMES_LONGER * (time.monotonic() - began_s) + MORE_S)
    found = []
    for edit in drawn:
        mutant, file, text = edit()
        copy = workspace.root / "mutants" / file
        copy.write_text(text)
        outcome = Outcome.KILLED if run(limit_s) else Outcome.SURVIVED
        copy.write_text((workspace.root / file).read_text())
        found.append((mutant, outcome))
        print(f"{len(found)}/{len(drawn)} {outcome.value}: {mutant.name}", flush=True)
    return found


def _test(workspace: Workspace, environment: Mapping[str, str], limit_s: int, verbose: bool) -> None:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    os.environ.update(environment)
    os.chdir(workspace.root / "mutants")
    sys.path[:0] = environment["PYTHONPATH"].split(":")
    sys.dont_write_bytecode = True
    if not verbose:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was imported once
    codes = (pytest.main([*arguments, each]) for each in workspace.target.tests)  # lazily: most mutants fail the first
    os._exit(next(filter(None, codes), 0))
