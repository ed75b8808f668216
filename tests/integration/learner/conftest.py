"""Checkpoints for tests of the learner's ranks."""

from pathlib import Path

import pytest
import torch

from support.trainer.tiny_models import CASES, FAMILIES

torch.set_num_threads(1)  # tiny models gain nothing from more, and other tests run beside these


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    return {(family, tied): FAMILIES[family](tmp_path_factory.mktemp(family), tied=tied) for family, tied in CASES}
