"""An image that is this machine: its settings in /etc, and mount points for the programs that its containers see.

One image is trainer and operator. It takes half a second to make, where a GPU image of 9 GB would have to be carried.
The project's code is copied to where containers see it, as they may not see the checkout.
"""

import compileall
import io
import logging
import shutil
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from local_cluster.gpus import divided, indexes_of
from local_cluster.hardware import Hardware
from local_cluster.images import write_image
from local_cluster.machine_files import needed
from local_cluster.node_cluster import NodeCluster
from local_cluster.project_images import REPOSITORY

log = logging.getLogger(__name__)

GPUS_VARIABLE = "GPUS"
"""indexes of the GPUs that are used, such as `0,1`; by default all"""
NAME = "rljob.local/machine:checkout"
ROOT = Path("/opt/rljob")
"""where tests/cluster/bundle/unpack.sh puts everything"""
CODE = ROOT / "code"
CODE_DIRECTORIES = ("crds", "operator", "trainer")
USER = 10001
USERS = f"root:x:0:0:root:/root:/bin/bash\nrljob:x:{USER}:{USER}::/home/rljob:/bin/bash\n"
GROUPS = f"root:x:0:\nrljob:x:{USER}:\n"
DIRECTORIES = ("proc", "sys", "dev", "run", "usr", "opt", "root", "home", "var", "etc", "etc/profile.d")
WRITABLE = ("tmp", "var/tmp")
LINKS = ("bin", "sbin", "lib", "lib64", "lib32")
"""to the same names in /usr"""
OWN = (
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "passwd",
    "group",
    "hosts",
    "hostname",
    "resolv.conf",
    "mtab",
    "profile.d",
)
"""of /etc: what a container has of its own"""
DRIVER = Path("/usr/local/nvidia")
PASSED = ("CC", "CUDA_", "CUDAHOSTCXX", "CXX", "NCCL_", "NVSHMEM_", "TORCH_", "TRITON_")
"""beginnings of the names of variables that containers have from this process"""
NOT_PASSED = ("CUDA_VISIBLE_DEVICES",)


def load(cluster: NodeCluster, environ: Mapping[str, str]) -> tuple[str, str]:
    """Give the image to the nodes, and the code to their containers; return it as trainer's and operator's."""
    started = time.monotonic()
    copy_code(CODE)
    if not cluster.has_image(NAME):
        archive = cluster.kubectl.kubeconfig.parent / "machine.tar"
        variables = variables_of(environ, sys.prefix, DRIVER.is_dir())
        settings = {"User": f"{USER}:{USER}", "WorkingDir": "/home/rljob"}
        write_image(archive, NAME, layer(variables), {**settings, "Env": [f"{k}={v}" for k, v in variables.items()]})
        cluster.import_archive(archive)
    log.info("action=load image=%s seconds=%.1f", NAME, time.monotonic() - started)
    return NAME, NAME


def hardware(environ: Mapping[str, str], nodes: int) -> Hardware:
    """Return nodes with the GPUs of this machine, or those of GPUS, divided over them; containers run its programs.

    Raises ClusterError.
    """
    directories = needed([sys.base_prefix, sys.prefix, *_of_packages(sys.path)])
    return Hardware(divided(gpus(environ), nodes), directories)


def gpus(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the indexes of the GPUs of this machine, or those of GPUS. Raises ClusterError."""
    return indexes_of(environ.get(GPUS_VARIABLE))


def copy_code(target: Path) -> None:
    """Copy the project's packages from the checkout, with a note of their version, as an installation has it."""
    shutil.rmtree(target, ignore_errors=True)
    for name in CODE_DIRECTORIES:
        shutil.copytree(REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    note = target / CODE_DIRECTORIES[0] / f"rljob-{version}.dist-info" / "METADATA"
    note.parent.mkdir()
    note.write_text(f"Metadata-Version: 2.1\nName: rljob\nVersion: {version}\n")
    compileall.compile_dir(target, quiet=2, workers=0)  # containers cannot write bytecode
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def variables_of(environ: Mapping[str, str], prefix: str, has_driver: bool) -> dict[str, str]:
    """Return the environment of containers.

    `prefix` of the Python that they run; `has_driver`: the GPUs' driver is in a directory of its own.
    """
    passed = {name: value for name, value in environ.items() if name.startswith(PASSED) and name not in NOT_PASSED}
    libraries = [str(DRIVER / name) for name in ("lib64", "lib")] if has_driver else []
    more = {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
    programs = [f"{prefix}/bin", environ.get("PATH", ""), *([str(DRIVER / "bin")] if has_driver else [])]
    return {"PYTHONUNBUFFERED": "1", **passed, **more, "PATH": ":".join(programs)}


def layer(variables: Mapping[str, str]) -> bytes:
    """Return the image's files, as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry in _entries():
            tar.addfile(entry)
        for path in sorted(Path("/etc").iterdir()):
            if path.name not in OWN:
                tar.add(path, f"etc/{path.name}", filter=_readable)
        # A login shell, with which pods are started, reads /etc/profile, which sets a PATH of its own.
        exports = "".join(f'export {name}="{value}"\n' for name, value in variables.items())
        for name, text in {"passwd": USERS, "group": GROUPS, "profile.d/rljob.sh": exports}.items():
            entry = tarfile.TarInfo(f"etc/{name}")
            entry.size, entry.mode = len(text.encode()), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _entries() -> Iterator[tarfile.TarInfo]:
    for name in (*DIRECTORIES, *WRITABLE, "home/rljob"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in WRITABLE else 0o755
        if name.endswith("rljob"):
            entry.uid = entry.gid = USER
        yield entry
    for name in LINKS:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
        yield entry


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return what may be in an image: no sockets, and nothing that only root may read."""
    is_kept = entry.isdir() or entry.issym() or entry.islnk() or (entry.isfile() and entry.mode & 0o004)
    return entry if is_kept else None


def _of_packages(paths: Sequence[str]) -> list[str]:
    return [str(Path(path).resolve()) for path in paths if Path(path).name in ("site-packages", "dist-packages")]
