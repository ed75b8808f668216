"""What a rank of the learner does with the archive of kernels; runs in every rank, see `learner_ranks.py`."""

from pathlib import Path
from unittest.mock import patch

from rljob_api.control import TOKEN_VARIABLE, kernels_key
from rljob_api.kernels import DIRECTORY_VARIABLE
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.kernel_archive import KeptKernels
from support.trainer.learner_scenarios import save

TOKEN = "a token"


def kept(machine: Path, archive: Path | None) -> KeptKernels:
    """Return the kernels of a machine of the job with this token."""
    key = kernels_key({TOKEN_VARIABLE: TOKEN})
    assert archive is not None
    assert key is not None
    return KeptKernels(machine, archive, key)


def kernels_around_a_save(
    rank: int, world_size: int, port: int, config: LearnerConfig, machine: Path, directory: Path
) -> tuple[list[str], bool]:
    """Make a rank on this machine, and save; return what the machine had before, and whether this rank packs."""
    packed: list[KeptKernels] = []
    with (
        patch.dict("os.environ", {DIRECTORY_VARIABLE: str(machine), TOKEN_VARIABLE: TOKEN}),
        patch.object(KeptKernels, "pack_soon", lambda kernels: packed.append(kernels)),
    ):
        learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
        had = sorted(path.name for path in machine.iterdir() if not path.name.startswith("."))
        assert not packed, "there is nothing new yet"
        save(learner, directory)
    return had, packed == [kept(machine, config.kernels)]
