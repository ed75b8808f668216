"""What the pods of a job may do, and where they may write. Pure.

They pass the Pod Security Standard `restricted`: no root, no privileges to gain, and a root file system that nobody
changes. So whatever a program wants to write needs a directory of its own, and those are here. KubeRay gives its init
container the security context and the mounts of the Ray container.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rljob_operator.identity import Manifest

USER = 10001
"""uid and gid of everything in the pods, whatever image they run: files on shared volumes have one owner"""
HOME = "/home/rljob"
SCRATCH: Mapping[str, tuple[str, Manifest]] = {
    "/tmp": ("rljob-tmp", {}),
    HOME: ("rljob-home", {}),
    # Ray's object store and gloo. No size limit: a node's own is what the pod, or else the node, has of memory.
    "/dev/shm": ("rljob-shm", {"medium": "Memory"}),
}
"""by path: name and kind of the emptyDir that is mounted there; it goes with the pod"""
ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "USER": "rljob",  # an image need not know the uid, and torch asks for the name that its cache is called by
    "RAY_TMPDIR": "/tmp",  # whatever TMPDIR is: unix sockets' paths are short
}
"""what all pods have unless `runtime.env` says otherwise"""


def pod_security() -> Manifest:
    """Return the security context of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        # Always would walk through all checkpoints of a volume before every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def scratch(mounts: Sequence[Mapping[str, Any]]) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Return the volumes, and where they are mounted, that a pod with these mounts of its own needs besides."""
    taken = {PurePosixPath(str(mount.get("mountPath"))) for mount in mounts}
    missing = {path: volume for path, volume in SCRATCH.items() if PurePosixPath(path) not in taken}
    volumes = tuple({"name": name, "emptyDir": dict(kind)} for name, kind in missing.values())
    return volumes, tuple({"name": name, "mountPath": path} for path, (name, _) in missing.items())
