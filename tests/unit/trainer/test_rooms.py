"""The trainer's root holds what a newcomer reads first; every other file is in a room."""

import subprocess
import sys

import grimp
import pytest

from support.cli.command import environment

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


def test_the_driver_s_side_of_learner_sync_engines_and_reporting_loads_neither_torch_nor_sglang(
    graph: grimp.ImportGraph,
):
    elsewhere = ("learners.rank", "learners.objectives", "sync.rank", "engines.inside")
    rooms = [f"rljob_trainer.{room}" for room in ("learners", "sync", "engines", "reporting")]
    modules = sorted(module for room in rooms for module in {room, *graph.find_descendants(room)})
    inside = [f"rljob_trainer.{room}" for room in elsewhere]
    chosen = [each for each in modules if not any(f"{each}.".startswith(f"{room}.") for room in inside)]
    check = f"import sys, {', '.join(chosen)}; print(*({{'torch', 'megatron', 'sglang'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", check], env=environment(), capture_output=True, text=True, check=True)
    assert (len(chosen) > 50, done.stdout.split()) == (True, [])
