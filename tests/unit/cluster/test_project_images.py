"""What is kept of images that were built."""

import re
from pathlib import Path

import pytest

from local_cluster import project_images
from local_cluster.errors import ClusterError
from local_cluster.project_images import INPUTS, OPERATOR, REPOSITORY, TRAINER, ProjectImage, storage


def test_layers_made_from_other_files_are_removed(tmp_path: Path) -> None:
    for old in (storage(tmp_path, [b"torch==2.11.0"]), tmp_path / "layers", tmp_path / "run"):
        (old / "overlay").mkdir(parents=True)
    kept = storage(tmp_path, [b"torch==2.12.0"])
    kept.mkdir()
    assert storage(tmp_path, [b"torch==2.12.0"]) == kept
    assert sorted(tmp_path.iterdir()) == [kept, tmp_path / "run"]


def test_locks_and_dockerfiles_are_there() -> None:
    assert all(path.is_file() for path in INPUTS)


@pytest.mark.parametrize("image", [OPERATOR, TRAINER], ids=lambda image: image.dockerfile)
def test_an_image_names_no_package_index(image: ProjectImage) -> None:
    text = (REPOSITORY / image.dockerfile).read_text()
    assert "ARG PIP_INDEX_URL\n" in text
    assert re.findall(r"(?:ARG PIP_INDEX_URL=|index(?:-url)?=http|/simple\b).*", text) == []


def test_uv_is_given_an_index_only_where_the_build_has_one() -> None:
    text = (REPOSITORY / TRAINER.dockerfile).read_text()
    assert text.count("--default-index=") == text.count("${PIP_INDEX_URL:+--default-index=${PIP_INDEX_URL}}") == 3


@pytest.mark.parametrize(
    ("said", "environ", "mirror"),
    [
        ("http://mirror/debian/\nhttp://mirror/debian/\n", {}, "http://mirror/debian/"),
        ("http://mirror/debian/\n", {"DEBIAN_MIRROR": "http://other/debian"}, "http://other/debian"),
    ],
)
def test_packages_of_the_base_image_come_from_where_this_machine_s_do(
    said: str, environ: dict[str, str], mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_images, "run", lambda *command: said)
    assert project_images.mirror_of(environ) == mirror


def test_a_machine_without_a_source_of_debian_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_images, "run", lambda *command: "")
    with pytest.raises(ClusterError, match="set DEBIAN_MIRROR to a mirror"):
        project_images.mirror_of({})
