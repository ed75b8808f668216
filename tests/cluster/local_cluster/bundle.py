"""`make gpu-bundle`: pack what a machine with GPUs lacks that has no network, for `make e2e-gpu` there.

    parts ─► tar ─► zstd ─► chunks ─► folders, each small enough for one transfer ─► tests/cluster/bundle/unpack.sh

A part is packed again only if it is named. The project itself is not packed: it is the checkout on that machine.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from local_cluster import carried_packages, carried_programs, chunks
from local_cluster.errors import ClusterError
from local_cluster.packages import program

log = logging.getLogger(__name__)

UV_VARIABLE = "UV"
PARTS: Mapping[str, Callable[[Path], None]] = {
    "system": carried_programs.collect_system,
    "kubernetes": lambda directory: carried_programs.collect_kubernetes(directory, dict(os.environ)),
    "packages": lambda directory: carried_packages.collect(directory, os.environ.get(UV_VARIABLE, "uv")),
}
"""what fills the directory of each part"""
UNPACKER = "zstd"
"""carried as it is, with its libraries"""
COMPRESSION = ("-15", "--long=27", "-T0", "--quiet")
CONTENTS = "contents"
"""file in each folder: the digest and the name of every chunk"""
FIRST = "system.00"
"""chunk of the first folder: what the machine lacks for it is seen before the rest is on its way"""
KEPT = "parts"


def main(arguments: Sequence[str]) -> int:
    """Pack all parts, or those that are named, into the directory that is named first; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    target, *named = arguments
    try:
        for folder, size in pack(Path(target), named):
            print(f"{size / chunks.MIB:6.1f} MiB  {folder}")
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def pack(target: Path, named: Sequence[str] = ()) -> list[tuple[Path, int]]:
    """Pack these parts, or all, and divide all chunks over folders; return the folders with their sizes [bytes].

    Raises ClusterError.
    """
    if strange := set(named) - set(PARTS):
        raise ClusterError(f"no part {', '.join(sorted(strange))}; there are {', '.join(PARTS)}")
    kept = target / KEPT
    kept.mkdir(parents=True, exist_ok=True)
    for name in named or PARTS:
        _pack_part(name, kept)
    return _divide(target, kept)


def _pack_part(name: str, kept: Path) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        directory = Path(scratch) / name
        directory.mkdir()
        PARTS[name](directory)
        raw = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
        for old in kept.glob(f"{name}.*"):
            old.unlink()
        tar = subprocess.Popen(["tar", "c", "--owner=0", "--group=0", "-C", scratch, name], stdout=subprocess.PIPE)
        zstd = subprocess.Popen([UNPACKER, *COMPRESSION], stdin=tar.stdout, stdout=subprocess.PIPE)
        split = ["split", f"--bytes={chunks.CHUNK}", "--numeric-suffixes", "-", str(kept / f"{name}.")]
        done = subprocess.run(split, stdin=zstd.stdout, check=False).returncode
        if done or zstd.wait() or tar.wait():
            raise ClusterError(f"{name}: tar, zstd or split failed, most often because a disk is full")
    packed = sum(path.stat().st_size for path in kept.glob(f"{name}.*"))
    seconds = time.monotonic() - started
    log.info("action=pack part=%s raw_mb=%.0f packed_mb=%.0f seconds=%.0f", name, raw / 1e6, packed / 1e6, seconds)


def _divide(target: Path, kept: Path) -> list[tuple[Path, int]]:
    for old in target.iterdir():
        if old.name.isdigit():
            shutil.rmtree(old)
    unpacker = kept / UNPACKER
    shutil.rmtree(unpacker, ignore_errors=True)
    unpacker.mkdir()
    shutil.copy2(program(UNPACKER), unpacker / UNPACKER)
    carried_programs.copy_libraries(unpacker / UNPACKER, unpacker)
    packed = sorted(path for path in kept.iterdir() if path.is_file())
    sizes = {path.name: path.stat().st_size for path in packed}
    sizes[UNPACKER] = sum(path.stat().st_size for path in unpacker.iterdir())
    digests = "".join(f"{_digest(path)}  {path.name}\n" for path in packed)
    made = []
    for number, names in enumerate(chunks.folders(sizes, first=[UNPACKER, FIRST]), start=1):
        folder = target / str(number)
        folder.mkdir()
        for name in names:
            if name == UNPACKER:
                shutil.copytree(unpacker, folder / UNPACKER)
            else:
                (folder / name).hardlink_to(kept / name)
        (folder / CONTENTS).write_text(digests)
        made.append((folder, sum(sizes[name] for name in names)))
    return made


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
