"""The images of the local node stay: nothing could pull them again."""

from pathlib import Path

import pytest

from local_cluster import runtime
from local_cluster.network import Network
from local_cluster.node import DISK_SIGNALS, kubelet_configuration
from local_cluster.runtime import Runtime

NETWORK = Network(server="10.9.0.3", services="10.9.1.0/24", pods="10.9.0.0/24", node="10.9.0.1")
CTR = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in
*"images list"*) echo "REF TYPE DIGEST"; [ -e {archive} ] || echo "pause:1 x sha256:abc" ;;
esac
"""


def test_a_full_disk_makes_the_kubelet_delete_no_image_and_evict_no_pod(tmp_path: Path):
    found = kubelet_configuration(tmp_path, NETWORK, "/cgroup", tmp_path / "ca.crt")
    assert {found["evictionHard"][signal] for signal in DISK_SIGNALS} == {"0%"}
    assert found["imageGCHighThresholdPercent"] == 100


def test_an_imported_image_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive, log, ctr = tmp_path / "pause.tar", tmp_path / "log", tmp_path / "ctr"
    archive.write_text("an archive")
    ctr.write_text(CTR.format(log=log, archive=archive))
    ctr.chmod(0o755)
    monkeypatch.setattr(runtime, "program", lambda name: ctr)
    Runtime(tmp_path / "socket").import_archive(archive)
    done = [line.partition("k8s.io ")[2] for line in log.read_text().splitlines()]
    assert "images label pause:1 io.cri-containerd.pinned=pinned" in done
    assert "snapshots unpack sha256:abc" in done
