"""What exists before the parts of a run do."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from rljob_api import control
from rljob_api.reading.manifest import parse
from rljob_trainer.assembly.foundation import lay
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.rundir.fence import Fence, Name
from rljob_trainer.rundir.retries import PATIENT
from support.trainer.whole_run import manifest

GPU = {"runtime": {"device": "Gpu"}}


@pytest.mark.parametrize(("debug", "has_place"), [({}, False), ({"cudaLaunchBlocking": True}, True)])
def test_core_dumps_have_a_place_before_a_process_starts(debug, has_place, tmp_path: Path):
    job = parse(manifest(tmp_path, tmp_path, **GPU, debug=debug))
    fence = Fence(tmp_path / "run", Name("here", 1))
    fence.directory.mkdir()
    with ExitStack() as stack:
        lay(job, fence, {}, stack, StatusStore(control.Status(attempt=1)), Phases(lambda: 0.0), Losses(), PATIENT, 0)
    assert (fence.directory / "cores").is_dir() is has_place
