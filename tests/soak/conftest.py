"""What the tests of sabotages share: a model that is sure of itself, and runs of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.trainer.sabotaged_run import HEALTHY, LETTERS, SURE, Prepare, rewrite
from support.trainer.tiny_models import tiny_llama
from support.trainer.whole_run import WholeRun, merged


@pytest.fixture(scope="session")
def sure_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that is sure of what it says. Read only."""
    directory = tiny_llama(tmp_path_factory.mktemp("sure"), tied=False)
    norm = "model.norm.weight"
    rewrite(directory, lambda tensors: tensors.update({norm: tensors[norm] * SURE}))
    return directory


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Prepare]:
    """Returns runs that have not begun, and ends what a failed test has left."""
    runs: list[WholeRun] = []

    def prepared(model: Path, judge: str = LETTERS, held_out: bool = False, **sections: Any) -> WholeRun:
        run = WholeRun(model, tmp_path, **merged(HEALTHY, sections))
        runs.append(run)
        content = yaml.safe_load(run.manifest.read_text())
        if not held_out:
            del content["spec"]["data"]["heldOut"], content["spec"]["evaluation"]
        run.manifest.write_text(yaml.safe_dump(content))
        (tmp_path / "tiny_reward.py").write_text(judge)
        return run

    yield prepared
    for run in runs:
        run.stop()
