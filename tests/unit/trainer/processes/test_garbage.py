"""The collector of the driver: what a rollout makes must not start it again and again."""

import gc
from collections.abc import Iterator

import pytest

from rljob_trainer.processes.garbage import collect_rarely


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_exists_is_not_looked_at_again_and_new_objects_rarely() -> None:
    collect_rarely()
    assert gc.get_freeze_count() > 0
    before = gc.get_stats()[0]["collections"]

    kept = [[index] for index in range(20_000)]

    assert gc.get_stats()[0]["collections"] == before
    assert len(kept) == 20_000


def test_garbage_in_cycles_is_still_collected() -> None:
    collect_rarely()
    before = gc.get_stats()[0]["collections"]
    for _ in range(60_000):
        cycle: list[object] = []
        cycle.append(cycle)
    assert gc.get_stats()[0]["collections"] > before
