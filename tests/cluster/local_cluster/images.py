"""Makes images out of static programs, without a registry, a base image or a build tool."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_archive(
    archive: Path, name: str, files: Mapping[str, Path], entrypoint: Sequence[str], links: Mapping[str, str] = {}
) -> Path:
    """Write an archive (that of `docker save`) of an image with these executables, by path in the image; return it.

    Links are symbolic: path to target.
    """
    started = {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}
    return write_image(archive, name, _layer(files, links), started)


def write_image(archive: Path, name: str, layer: bytes, started: Mapping[str, object]) -> Path:
    """Write an archive of an image with this layer, a tar, whose containers are started in this way; return it."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": started,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return archive


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        scratch = tarfile.TarInfo("tmp")
        scratch.type, scratch.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(scratch)
        for path, source in files.items():
            _add(tar, path.lstrip("/"), source.read_bytes())
        for path, target in links.items():
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))
