"""What the containers of a node see of this machine: nothing, or its programs, read-only, in the place of an image's.

containerd starts each container from a given runtime specification, and so no manifest knows of these mounts. A machine
without a registry and without tools to build images can run pods in this way.
"""

import json
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from local_cluster.switch import run

SPECIFICATION = "runtime-spec.json"
"""file in the directory of a node"""
SYSTEM = ("/usr", "/opt")
SECTION = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{path}"
"""


class Files(Protocol):
    """What the containers of a node see of this machine."""

    def configure(self, directory: Path) -> str:
        """Return what containerd's configuration says of it, and write what that names into the node's directory."""


@dataclass(frozen=True, slots=True)
class NoFiles:
    """Containers have what is in their images."""

    def configure(self, directory: Path) -> str:
        """Leave containerd's own specification."""
        return ""


@dataclass(frozen=True, slots=True)
class MachineFiles:
    """Containers also see these directories, read-only."""

    directories: tuple[str, ...]

    def configure(self, directory: Path) -> str:
        """Write the specification of containers."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        made = specification(json.loads(run("ctr", "oci", "spec")), self.directories, most)
        path = directory / SPECIFICATION
        path.write_text(json.dumps(made))
        return SECTION.format(path=path)


def specification(usual: dict[str, Any], directories: Sequence[str], open_files: int) -> dict[str, Any]:
    """Return containerd's usual specification of a container with these directories.

    `open_files`: the hard limit of this process; runc fails where the usual one, a million, is above it.
    """
    limit = {"type": "RLIMIT_NOFILE", "hard": open_files, "soft": open_files}
    # Mounts below a directory, such as a GPU's driver, are not for every pod.
    shared = [
        {"destination": path, "source": path, "type": "bind", "options": ["bind", "ro"]} for path in sorted(directories)
    ]
    kept = [mount for mount in usual["mounts"] if mount["destination"] != "/run"]  # as for containers of Kubernetes
    return {**usual, "process": {**usual["process"], "rlimits": [limit]}, "mounts": [*kept, *shared]}


def needed(paths: Iterable[str], system: Sequence[str] = SYSTEM) -> tuple[str, ...]:
    """Return the directories of which all these paths are seen: those of the system, and what is outside of them."""
    found = list(system)
    for path in sorted(map(PurePosixPath, paths), key=lambda each: len(each.parts)):
        if not any(path.is_relative_to(each) for each in found):
            found.append(str(path))
    return tuple(found)
