"""The Python packages of trainer, operator and command line for a machine with GPUs that has PyTorch and no network.

Versions and hashes are those of the locks. What the machine has by itself, and what no test there uses, is left out.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.project_images import REPOSITORY

LEFT_OUT = REPOSITORY / "tests/cluster/bundle/left_out.txt"
LOCKS = ("gpu", "operator")
"""of requirements/; a package that both have is of the same version"""
TARGET = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39")
"""the machine's Python, and the C library of Ubuntu 24.04"""
TRIMMED = (
    # Kernels for other architectures than Hopper, and FlashAttention 3: engines there use Triton's attention.
    *("sgl_kernel/flash_ops*", "sgl_kernel/flashmla_ops*", "sgl_kernel/infllm_ops*", "sgl_kernel/sm100"),
    # Of Ray: Java, its reinforcement learning, and the pages of its dashboard.
    *("ray/jars", "ray/core/jars", "ray/rllib", "ray/dashboard/client/build/static"),
    *("xgrammar/lib/*.a", "bin"),
)
"""what is removed after the installation, by glob"""
KEPT_EMPTY = ("ray/dashboard/client/build/static",)
"""the head of a Ray cluster ends without this directory"""
STRIPPED = 4 * 2**20
"""libraries from this size on lose their tables for debuggers [bytes]"""
PROGRAMS_OF_RAY = ("ray/core/src/ray/gcs/gcs_server", "ray/core/src/ray/raylet/raylet")


def collect(directory: Path, uv: str) -> None:
    """Install the packages into this directory, and trim them. Raises ClusterError."""
    left_out = names_in(LEFT_OUT.read_text())
    locks = [(REPOSITORY / f"requirements/{lock}.txt").read_text() for lock in LOCKS]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        entries = "".join(carried(locks, left_out))
        wanted.write(entries)
        wanted.flush()
        install = [uv, "pip", "install", "--quiet", "--link-mode=copy", "--target", str(directory), *TARGET]
        # The settings in pyproject.toml drop what has no use on CPUs.
        install += ["--no-config", "--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", wanted.name]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(install)}` failed with {done.returncode}: {done.stderr[-2000:]}")
    if missing := sorted({_normal(name) for name, _ in _entries(entries)} - installed(directory)):
        raise ClusterError(f"`{' '.join(install)}` has left out {', '.join(missing)}, without an error")
    _trim(directory)


def installed(directory: Path) -> set[str]:
    """Return the normalised names of the packages in a directory."""
    return {_normal(path.name.partition("-")[0]) for path in directory.glob("*.dist-info")}


def names_in(text: str) -> frozenset[str]:
    """Return the names in a file with one a line; `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return frozenset(filter(None, lines))


def carried(locks: Collection[str], left_out: Collection[str]) -> Iterator[str]:
    """Yield the entries of these locks, each once, without those packages.

    Raises ClusterError if a package is to be left out that no lock has.
    """
    entries = {name: entry for lock in reversed([*locks]) for name, entry in _entries(lock)}
    if strange := sorted(set(left_out) - set(entries)):
        raise ClusterError(f"{LEFT_OUT.name} leaves out {', '.join(strange)}, which no lock has")
    return (entry for name, entry in sorted(entries.items()) if name not in left_out)


def _entries(lock: str) -> Iterator[tuple[str, str]]:
    """Yield each package of a lock: its name, and its lines with version and hashes."""
    for entry in re.split(r"^(?=[a-zA-Z])", lock, flags=re.MULTILINE)[1:]:
        yield re.split(r"[\[= ;]", entry, maxsplit=1)[0], entry


def _normal(name: str) -> str:
    """Return the name of a package as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _trim(directory: Path) -> None:
    for pattern in TRIMMED:
        for path in directory.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for kept in KEPT_EMPTY:
        (directory / kept).mkdir(parents=True)
    large = [path for path in directory.rglob("*.so*") if path.is_file() and path.stat().st_size >= STRIPPED]
    for path in (*large, *(directory / name for name in PROGRAMS_OF_RAY)):
        # `strip` refuses what it does not understand and leaves it as it is.
        subprocess.run(["strip", "--strip-unneeded", str(path)], capture_output=True, check=False)
