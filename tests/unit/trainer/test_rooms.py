"""The trainer's root holds what a newcomer reads first; every other file is in a room."""

import grimp
import pytest

MOST_MODULES = 13
ENTRIES = {"rljob_trainer.driver", "rljob_trainer.loop"}
"""the program itself: driver runs loop, and nothing imports driver"""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("rljob_trainer", cache_dir=None)


@pytest.fixture(scope="module")
def root(graph: grimp.ImportGraph) -> set[str]:
    return {module for module in graph.find_children("rljob_trainer") if not graph.find_children(module)}


def test_the_root_stays_small(root: set[str]):
    assert root > ENTRIES
    assert len(root) <= MOST_MODULES


def test_each_module_of_the_root_serves_several_others(graph: grimp.ImportGraph, root: set[str]):
    importers = {module: graph.find_modules_that_directly_import(module) for module in root - ENTRIES}
    assert {module: found for module, found in importers.items() if len(found) < 2} == {}
