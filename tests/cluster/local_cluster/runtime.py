"""containerd on a node, and the images that it has: nothing is pulled."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.images import write_archive
from local_cluster.machine_files import Files
from local_cluster.namespace import Namespace
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

    state: Path
    """directory of the node"""

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.state / "run" / SOCKET

    def is_ready(self) -> bool:
        """Return whether it answers."""
        return self.socket.exists() and self._ctr("version").returncode == 0

    def take(self, archive: Path) -> list[str]:
        """Take the images of this archive (OCI or `docker save`) without unpacking them; return new digests."""
        before = self.images()
        self.do("images", "import", "--no-unpack", str(archive))
        after = self.images()
        for name in sorted(set(after) - set(before)):
            self.do("images", "label", name, PINNED)
        return sorted(set(after.values()) - set(before.values()))

    def unpack(self, digests: Sequence[str]) -> None:
        """Unpack the layers of these images that are not unpacked yet: then the kubelet knows the images."""
        for digest in digests:
            self.do("snapshots", "unpack", digest)

    def images(self) -> Mapping[str, str]:
        """Return the names of the images that the kubelet knows, with the digests of their manifests."""
        rows = self.do("images", "list").splitlines()[1:]
        return {name: digest for name, _, digest, *_ in map(str.split, rows)}

    def do(self, *arguments: str) -> str:
        """Run `ctr` on what the kubelet uses, and return its output. Raises ClusterError."""
        done = self._ctr("--namespace=k8s.io", *arguments)
        if done.returncode:
            raise ClusterError(f"`ctr {' '.join(arguments)}` at {self.socket}: {done.stderr.strip()}")
        return done.stdout

    def on_machine(self, path: str) -> Path:
        """Return where this machine sees a path below the node's /var/lib."""
        return self.state / "lib" / Path(path).relative_to("/var/lib")

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(program("ctr")), f"--address={self.socket}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def start_runtime(namespace: Namespace, pods: str, files: Files) -> Started:
    """Start containerd in a node's namespace; its pods have addresses of this CIDR, and see these files."""
    state = namespace.state
    cni, configuration = state / "cni", state / "containerd.toml"
    cni.mkdir(exist_ok=True)
    (cni / "10-pods.conflist").write_text(json.dumps(pod_network(pods), indent=2))
    usual = CONFIGURATION.format(pause=PAUSE_IMAGE, plugins=CNI_PLUGINS, cni=cni)
    configuration.write_text(usual + files.configure(state))
    command = namespace.inside(str(program("containerd")), f"--config={configuration}")
    return start("containerd", command, state, Runtime(state).is_ready)


def pause_archive(directory: Path) -> Path:
    """Write the image that holds a pod's namespaces open."""
    pause = {"/catatonit": program("catatonit")}
    return write_archive(directory / "pause.tar", PAUSE_IMAGE, pause, ["/catatonit", "-P"])


def pod_network(pods: str) -> dict[str, object]:
    """Return the CNI configuration: one bridge, addresses handed out by the node, host ports.

    Pods keep their addresses on the way to other nodes: NetworkPolicies there go by them.
    """
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}
