"""What is kept of images that were built."""

from pathlib import Path

from local_cluster.project_images import INPUTS, storage


def test_layers_made_from_other_files_are_removed(tmp_path: Path) -> None:
    for old in (storage(tmp_path, [b"torch==2.11.0"]), tmp_path / "layers", tmp_path / "run"):
        (old / "overlay").mkdir(parents=True)
    kept = storage(tmp_path, [b"torch==2.12.0"])
    kept.mkdir()
    assert storage(tmp_path, [b"torch==2.12.0"]) == kept
    assert sorted(tmp_path.iterdir()) == [kept, tmp_path / "run"]


def test_locks_and_dockerfiles_are_there() -> None:
    assert all(path.is_file() for path in INPUTS)
