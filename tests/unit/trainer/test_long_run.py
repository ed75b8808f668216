"""A long run costs the same at each step: what is kept in memory, what is written, and what a resume reads."""

import gc
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from rljob_trainer.loop import train
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting import events
from rljob_trainer.reporting.records import StepRecord

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "long_run.py"
FULL = 20_000
"""of a file of the journal [bytes]"""
EVERY = 50
"""steps between two looks"""


@pytest.fixture
def long_run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program of `docs/scale.md`: its driver is the one that is looked at here."""
    found = spec_from_file_location("long_run", PROGRAM)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    monkeypatch.setitem(sys.modules, "long_run", module)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "FULL", FULL)
    return module


@pytest.mark.parametrize(
    ("steps", "ranks", "engines"),
    [(350, 32, 4), pytest.param(10_000, 512, 64, marks=[pytest.mark.long, pytest.mark.timeout(7200)])],
)
def test_a_step_costs_the_same_after_any_number_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_run: ModuleType, steps: int, ranks: int, engines: int
) -> None:
    before = records_in_memory()
    size = long_run.Size(steps=steps, ranks=ranks, engines=engines, prompts=8)
    kept, written, longest = [], [], 0
    with Background() as background:
        driver = long_run.Driver(tmp_path, size)
        parts = driver.parts(background)
        for first in range(0, steps, EVERY):
            for step in range(first, first + EVERY):
                driver.between(background, step)
                train(parts, step, step + 1)
            kept.append(records_in_memory() - before)
            written.append((tmp_path / "events.jsonl").stat().st_size)
            longest = max(longest, (tmp_path / "journal.jsonl").stat().st_size)
        driver.close()
    of_a_step = [(after - before) / EVERY for before, after in zip(written, written[2:], strict=False)]
    assert max(kept) < 2 * parts.report._watching.limits.window + 10, "records of steps are kept in memory"
    assert max(of_a_step) < 1.5 * min(of_a_step) and max(of_a_step) < 50_000
    assert longest < FULL + long_run.SAVE_EVERY * 1000, "each file of the journal ends at a commit"
    assert len(list((tmp_path / "journal").iterdir())) >= steps * 150 // (FULL + 10_000)
    assert len(driver.store.status.model_dump_json()) < 40_000

    parsed = []
    parse = events._parse
    monkeypatch.setattr(events, "_parse", lambda line, where: parsed.append(where) or parse(line, where))
    again = long_run.Driver(tmp_path, size, attempt=2)
    again.close()
    assert (again.first, again.report.progress().step, again.report.progress().losses) == (steps, steps, {})
    assert again.report.progress().curve == driver.report.progress().curve
    assert len(parsed) < 200 < steps, "a resume reads what is behind the newest summary"


def records_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, StepRecord) for each in gc.get_objects())
