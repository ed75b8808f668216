"""Debian packages that a node needs beside what is built."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from local_cluster.errors import ClusterError

CNI_PLUGINS = Path("/usr/lib/cni")
OWN_STATUS = Path("/proc/self/status")

NODE_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "containernetworking-plugins": tuple(f"{CNI_PLUGINS}/{plugin}" for plugin in ("bridge", "host-local", "portmap")),
    "iptables": ("iptables",),
    "ipset": ("ipset",),
    "conntrack": ("conntrack",),
    "catatonit": ("catatonit",),
    "iproute2": ("ip",),
    "util-linux": ("unshare", "nsenter"),
}
"""what each must bring for a node, by name or path; catatonit is the pause image"""
PACKAGES: Mapping[str, tuple[str, ...]] = {
    **NODE_PACKAGES,
    "busybox-static": ("busybox",),
    "buildah": ("buildah",),
    "debootstrap": ("debootstrap",),
}
"""the same with those that build images; busybox is the tests' image"""


def missing(path: str | None, packages: Mapping[str, tuple[str, ...]] = PACKAGES) -> list[str]:
    """Return the packages of which something is missing on this PATH."""
    return [package for package, programs in packages.items() if not all(shutil.which(p, path=path) for p in programs)]


CAPABILITIES: Mapping[str, int] = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
"""what a node needs of the kernel, by bit: mounts and namespaces, and a network cable"""


def require_privileges(process_status: str) -> None:
    """Raise ClusterError unless a process with this /proc/PID/status may start a node."""
    (effective,) = [int(line.split()[1], 16) for line in process_status.splitlines() if line.startswith("CapEff:")]
    if lacking := [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]:
        raise ClusterError(
            f"a cluster with a node needs {' and '.join(lacking)}, for namespaces, mounts and interfaces; "
            "run it as root, and a container around it as privileged"
        )


def require(environ: Mapping[str, str], packages: Mapping[str, tuple[str, ...]] = PACKAGES) -> None:
    """Raise ClusterError unless a node can be started here: with the privileges, and with all of these packages."""
    require_privileges(OWN_STATUS.read_text())
    if absent := missing(environ.get("PATH"), packages):
        raise ClusterError(
            f"a cluster with a node needs the packages {', '.join(absent)}; install them as root with "
            f"`apt-get install --no-install-recommends {' '.join(absent)}`, or `make cluster-packages`"
        )


def install(environ: Mapping[str, str]) -> None:
    """Install what is missing. Raises ClusterError if this is no Debian, or apt-get refuses."""
    absent = missing(environ.get("PATH"))
    if not absent:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"no apt-get here; install what brings {', '.join(absent)} in this distribution's way")
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *absent]):
        if subprocess.run(["apt-get", "-qq", *command], check=False).returncode:
            raise ClusterError(f"`apt-get {' '.join(command)}` failed; it needs root and a package mirror")


def program(name: str) -> Path:
    """Return the path of a program that `require` found."""
    found = shutil.which(name)
    if found is None:
        raise ClusterError(f"no `{name}` on PATH")
    return Path(found)
