"""containerd on the node, and the images that it has: nothing is pulled."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.images import write_archive
from local_cluster.namespace import Namespace
from local_cluster.network import Network
from local_cluster.packages import CNI_PLUGINS, program
from local_cluster.processes import Started, start

PAUSE_IMAGE = "rljob.local/pause:1"
PINNED = "io.cri-containerd.pinned=pinned"
"""label of an image that the kubelet never deletes, from containerd 1.7 on: there is no registry to pull it from"""
SOCKET = Path("containerd/containerd.sock")
"""under /run of the node"""

CONFIGURATION = """version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE no score can be lowered, and every pod fails: "can't get final child's PID from pipe".
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{cni}"
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A running containerd, seen from outside the node."""

    socket: Path

    def is_ready(self) -> bool:
        """Return whether it answers."""
        return self.socket.exists() and self._ctr("version").returncode == 0

    def import_archive(self, archive: Path) -> None:
        """Make the images of this archive (OCI or `docker save`) known to the kubelet. Raises ClusterError.

        The archive is removed before its images are unpacked: both do not fit on every disk.
        """
        before = self.images()
        self._do("images", "import", "--no-unpack", str(archive))
        archive.unlink()
        after = self.images()
        for name in sorted(set(after) - set(before)):
            self._do("images", "label", name, PINNED)
        for digest in sorted(set(after.values()) - set(before.values())):
            self._do("snapshots", "unpack", digest)

    def images(self) -> Mapping[str, str]:
        """Return the names of the images that the kubelet knows, with the digests of their manifests."""
        rows = self._do("images", "list").splitlines()[1:]
        return {name: digest for name, _, digest, *_ in map(str.split, rows)}

    def _do(self, *arguments: str) -> str:
        done = self._ctr("--namespace=k8s.io", *arguments)
        if done.returncode:
            raise ClusterError(f"`ctr {' '.join(arguments)}` at {self.socket}: {done.stderr.strip()}")
        return done.stdout

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(program("ctr")), f"--address={self.socket}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def runtime_of(directory: Path) -> Runtime | None:
    """Return the containerd of the cluster in this directory; None if it has none."""
    socket = directory / "node" / "run" / SOCKET
    return Runtime(socket) if socket.exists() else None


def start_runtime(directory: Path, namespace: Namespace, network: Network) -> tuple[Runtime, Started]:
    """Start containerd in the node's namespace."""
    cni, configuration = namespace.state / "cni", namespace.state / "containerd.toml"
    cni.mkdir()
    (cni / "10-pods.conflist").write_text(json.dumps(pod_network(network), indent=2))
    configuration.write_text(CONFIGURATION.format(pause=PAUSE_IMAGE, plugins=CNI_PLUGINS, cni=cni))
    runtime = Runtime(namespace.state / "run" / SOCKET)
    command = namespace.inside(str(program("containerd")), f"--config={configuration}")
    return runtime, start("containerd", command, directory, runtime.is_ready)


def pause_archive(directory: Path) -> Path:
    """Write the image that holds a pod's namespaces open."""
    pause = {"/catatonit": program("catatonit")}
    return write_archive(directory / "pause.tar", PAUSE_IMAGE, pause, ["/catatonit", "-P"])


def pod_network(network: Network) -> dict[str, object]:
    """Return the CNI configuration: one bridge, addresses handed out by the node, host ports."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}
