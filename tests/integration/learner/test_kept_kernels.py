"""What the learner has compiled is kept with its checkpoints, for pods that start later."""

from pathlib import Path

from support.trainer.kept_kernels import kept, kernels_around_a_save
from support.trainer.learner_data import learner_config
from support.trainer.learner_ranks import run_ranks


def test_ranks_find_the_kernels_that_were_kept_and_one_keeps_theirs(tiny_llama_dir: Path, tmp_path: Path) -> None:
    archive = tmp_path / "run" / "kernels.tar"
    earlier, machine = tmp_path / "earlier", tmp_path / "machine"
    earlier.mkdir()
    (earlier / "kernel.cubin").write_bytes(b"cubin")
    kept(earlier, archive).pack()
    config = learner_config(tiny_llama_dir, kernels=archive)
    first, second = run_ranks(kernels_around_a_save, 2, config, machine, tmp_path / "saved")
    assert first == (["kernel.cubin"], True)
    assert second == (["kernel.cubin"], False), "all ranks compile the same"
