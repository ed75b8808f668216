"""Checkpoints for tests of the learner's ranks."""

from pathlib import Path

import pytest

from support.trainer.tiny_models import FAMILIES


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    return {
        (family, tied): make(tmp_path_factory.mktemp(family), tied=tied)
        for family, make in FAMILIES.items()
        for tied in (True, False)
    }
