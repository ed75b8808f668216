"""Debian's programs for a node, for a machine without a package mirror: as files, with the libraries that they name.

The machine's own files come first: only what it lacks is taken there, so its C library must be as new as this one's.
"""

import shutil
import subprocess
from pathlib import Path

from local_cluster.binaries import binary, cache, manifests
from local_cluster.errors import ClusterError
from local_cluster.node_cluster import PROGRAMS
from local_cluster.packages import CNI_PLUGINS, NODE_PACKAGES, program

OTHERS = ("containerd-shim-runc-v2", "tc", "openssl", "wget")
"""programs that a node uses beside those that `packages` names"""
RULES = ("iptables", "ip6tables")
FORMS = ("", "-save", "-restore")
"""of one program that acts by the name it is called by"""
RULES_PROGRAMS = ("xtables-nft-multi", "xtables-legacy-multi")
"""the first is used, or the second where the kernel has no nftables"""
PLUGINS = ("bridge", "host-local", "loopback", "portmap")
EXTENSIONS = Path("/usr/lib/x86_64-linux-gnu/xtables")
"""matches and targets of iptables"""
SETTINGS = ("/etc/ssl/openssl.cnf",)
EVERYWHERE = ("linux-vdso", "ld-linux", "libc.so", "libm.so")
"""each Linux has these libraries, and no other's may be used in their place"""
MODULES_WITH_MANIFESTS = ("kuberay", "kwok")


def collect_system(directory: Path) -> None:
    """Copy the programs into `programs/`, under their own paths, and their libraries into `libraries/`."""
    found = [Path(each) for programs in NODE_PACKAGES.values() for each in programs]
    wanted = [program(each.name) if each.parent == Path() else each for each in found]
    wanted += [program(each) for each in OTHERS]
    wanted += [CNI_PLUGINS / plugin for plugin in PLUGINS]
    wanted += [path for path in EXTENSIONS.iterdir() if path.suffix == ".so"]
    wanted += [Path(each) for each in SETTINGS]
    for path in dict.fromkeys(each for each in wanted if each.name not in RULES):
        _copy(path, directory / "programs")
    for name in RULES_PROGRAMS:
        _copy(program(name), directory / "programs")
    for name in (rules + form for rules in RULES for form in FORMS):
        (directory / "programs/usr/sbin" / name).symlink_to(RULES_PROGRAMS[0])
    (directory / "libraries").mkdir()
    for path in [*(directory / "programs").rglob("*")]:
        if path.is_file() and not path.is_symlink():
            copy_libraries(path, directory / "libraries")


def collect_kubernetes(directory: Path, environ: dict[str, str]) -> None:
    """Copy the programs of a cluster from the cache, where they are built if needed, under their names there."""
    root = cache(environ)
    for path in [
        *(binary(name, environ) for name in PROGRAMS),
        *(manifests(m, environ) for m in MODULES_WITH_MANIFESTS),
    ]:
        target = directory / "cluster" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)


def copy_libraries(executable: Path, directory: Path) -> None:
    """Copy what a program is linked to into a directory, under the names that it asks for."""
    listed = subprocess.run(["ldd", str(executable)], capture_output=True, text=True, check=False)
    for name, path in libraries(listed.stdout).items():
        if not (directory / name).exists():
            shutil.copy2(path, directory / name)


def libraries(listed: str) -> dict[str, str]:
    """Return the libraries that `ldd` prints, by the name that is asked for. Raises ClusterError if one is missing."""
    found = {}
    for line in listed.splitlines():
        name, arrow, rest = (part.strip() for part in line.partition("=>"))
        if not arrow or name.startswith(EVERYWHERE):
            continue
        if rest.startswith("not found"):
            raise ClusterError(f"the library {name} is missing on this machine, too")
        found[name] = rest.split(" ")[0]
    return found


def _copy(path: Path, root: Path) -> None:
    real = path.resolve()
    # /usr/sbin/ip is a link to /usr/bin/ip: what is carried has the path that is called.
    target = root / path.parent.resolve().relative_to("/") / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(real, target)
