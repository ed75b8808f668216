"""Archives of images without a build tool."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from local_cluster.images import write_archive


def test_the_archive_names_its_image_and_its_layer_by_digest(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x7fELF")
    archive = write_archive(tmp_path / "a.tar", "a.local/a:1", {"/bin/a": tmp_path / "program"}, ["/bin/a"])
    with tarfile.open(archive) as tar:
        parts = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    (manifest,) = json.loads(parts["manifest.json"])
    config = json.loads(parts[manifest["Config"]])
    (layer,) = manifest["Layers"]
    assert manifest["RepoTags"] == ["a.local/a:1"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(parts[layer]).hexdigest()}"]
    assert config["config"]["Entrypoint"] == ["/bin/a"]


def test_programs_are_executable_links_are_links_and_tmp_is_everyones(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x7fELF")
    archive = write_archive(tmp_path / "a.tar", "a", {"/bin/a": tmp_path / "program"}, [], {"/bin/b": "a"})
    with tarfile.open(archive) as tar:
        layer = tar.extractfile("layer.tar")
        assert layer
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as files:
            entries = {entry.name: (entry.mode, entry.linkname) for entry in files}
    assert entries == {"tmp": (0o1777, ""), "bin/a": (0o755, ""), "bin/b": (0o644, "a")}
