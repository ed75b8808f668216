"""What the operator's process sets for itself."""

import gc
from collections.abc import Iterator

import pytest

from rljob_operator.process import collect_young_garbage_only

YOUNG = 300_000
"""containers that are kept: as many make Python walk through all of them, if it may"""


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.mark.usefixtures("thresholds")
def test_what_is_kept_is_not_walked_through_again_and_again():
    before = full_collections()
    by_default = [[number] for number in range(YOUNG)]
    found = full_collections() - before

    collect_young_garbage_only()
    before = full_collections()
    kept = [[number] for number in range(YOUNG)]

    assert found > 0
    assert full_collections() == before
    assert len(kept) == len(by_default)
