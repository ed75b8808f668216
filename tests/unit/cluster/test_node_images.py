"""Images of the local nodes: they stay, for nothing could pull them again, and nodes share their layers."""

from pathlib import Path

import pytest

from local_cluster import runtime
from local_cluster.node_images import import_archive, layers, lower_directory, parents_first, upper_directory
from local_cluster.runtime import Runtime

CTR = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in
*"images list"*) echo "REF TYPE DIGEST"; ! grep -q "images import" {log} || echo "pause:1 x sha256:abc" ;;
esac
"""
LISTED = """\
KEY          PARENT       KIND
sha256:top   sha256:base  Committed
sha256:base               Committed
c0ffee       sha256:top   Active
"""
SNAPSHOTS = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"


def test_an_imported_image_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive, log, ctr = tmp_path / "pause.tar", tmp_path / "log", tmp_path / "ctr"
    archive.write_text("an archive")
    ctr.write_text(CTR.format(log=log))
    ctr.chmod(0o755)
    monkeypatch.setattr(runtime, "program", lambda name: ctr)
    import_archive(archive, [Runtime(tmp_path)])
    assert not archive.exists()
    done = [line.partition("k8s.io ")[2] for line in log.read_text().splitlines()]
    assert "images label pause:1 io.cri-containerd.pinned=pinned" in done
    assert "snapshots unpack sha256:abc" in done


def test_layers_are_the_committed_snapshots() -> None:
    assert layers(LISTED) == {"sha256:top": "sha256:base", "sha256:base": ""}


def test_a_layer_comes_after_its_parent() -> None:
    assert parents_first({"c": "b", "b": "a", "a": "", "d": "a", "e": "known before"}) == ["a", "e", "b", "d", "c"]


def test_a_new_snapshot_is_written_where_its_mount_says() -> None:
    lowest = f'[{{"Type": "bind", "Source": "{SNAPSHOTS}/1/fs", "Options": ["rw", "rbind"]}}]'
    assert upper_directory(lowest) == f"{SNAPSHOTS}/1/fs"
    options = f'"workdir={SNAPSHOTS}/3/work", "upperdir={SNAPSHOTS}/3/fs", "lowerdir={SNAPSHOTS}/2/fs:{SNAPSHOTS}/1/fs"'
    above = f'[{{"Type": "overlay", "Source": "overlay", "Options": ["index=off", {options}]}}]'
    assert upper_directory(above) == f"{SNAPSHOTS}/3/fs"
    assert lower_directory(above) == f"{SNAPSHOTS}/2/fs"


def test_a_path_of_the_node_is_found_on_the_machine(tmp_path: Path) -> None:
    assert Runtime(tmp_path).on_machine("/var/lib/containerd/x") == tmp_path / "lib/containerd/x"
