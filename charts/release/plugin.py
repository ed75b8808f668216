"""`kubectl rljob` for krew: an archive with the command line and all packages of its lock, and krew's manifest."""

import gzip
import io
import stat
import tarfile
from pathlib import Path
from typing import Any, Final

import yaml

NAME: Final = "rljob"
PLATFORM: Final = {"os": "linux", "arch": "amd64"}
LAUNCHER: Final = """\
#!/usr/bin/env python3.11
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
from rljob_cli.__main__ import main

main()
"""
"""krew calls it by a link; compiled packages of the lock are for Python 3.11"""
LEFT_OUT: Final = {"__pycache__", "bin", ".lock", "direct_url.json", "uv_cache.json"}
"""bytecode, and what names paths of the machine that builds"""
DESCRIPTION: Final = """\
Shows RLJobs, runs of reinforcement learning with language models: their
progress, curves, engines and logs, and why one waits, fails, is slow or
does not learn. Resumes a failed job from its newest checkpoint.
"""
CAVEATS: Final = (
    "It needs Python 3.11 as `python3.11` on the PATH. The other commands of rljob need its Python package.\n"
)


def archive(packages: Path, licence: Path) -> bytes:
    """Return a tar.gz with the launcher, the licence and the packages; the same files give the same bytes."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.GNU_FORMAT) as out:
        _add(out, "kubectl-rljob", LAUNCHER.encode(), 0o755)
        _add(out, "LICENSE", licence.read_bytes(), 0o644)
        for file in sorted(packages.rglob("*")):
            inside = file.relative_to(packages)
            if file.is_file() and not LEFT_OUT.intersection(inside.parts):
                mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
                _add(out, f"lib/{inside}", file.read_bytes(), mode)
    return gzip.compress(tar.getvalue(), mtime=0)


def _add(out: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    out.addfile(entry, io.BytesIO(content))


def manifest(version: str, uri: str, sha256: str, homepage: str) -> str:
    """Return krew's manifest of an archive that is published at `uri`."""
    content: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": homepage,
            "shortDescription": "Look at RLJobs: training of language models",
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": [
                {"selector": {"matchLabels": PLATFORM}, "uri": uri, "sha256": sha256, "bin": "kubectl-rljob"}
            ],
        },
    }
    return yaml.safe_dump(content, sort_keys=False)
