"""Gives images to all nodes of a cluster. The first node unpacks them; the others get hard links to its layers.

Containers write to no layer, so the nodes can share the files, and the machine's memory has each of them once.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.runtime import Runtime

DRAFT = "rljob-draft"
"""key of a snapshot that lives for a moment"""
COMMITTED = "Committed"
"""kind of a layer of an image, which nothing changes"""


def import_archive(archive: Path, runtimes: Sequence[Runtime]) -> None:
    """Make the images of this archive known to the kubelets of these nodes. Raises ClusterError.

    The archive is removed before its images are unpacked: both do not fit on every disk.
    """
    with ThreadPoolExecutor(len(runtimes)) as pool:
        taken = list(pool.map(lambda runtime: runtime.take(archive), runtimes))
    archive.unlink()
    first, *others = runtimes
    first.unpack(taken[0])
    for other, digests in zip(others, taken[1:], strict=True):
        _share_layers(first, other)
        other.unpack(digests)  # finds each layer, and notes that the image needs them


def parents_first(parents: Mapping[str, str]) -> list[str]:
    """Return the layers in an order in which each comes after its parent; `parents` has "" for the lowest ones."""
    found: list[str] = []
    left = dict(parents)
    while ready := [layer for layer, parent in left.items() if parent not in left]:
        found += ready
        left = {layer: parent for layer, parent in left.items() if layer not in ready}
    return found


def layers(listed: str) -> dict[str, str]:
    """Return the layers in what `ctr snapshots list` prints, with the parent of each; "" for the lowest ones."""
    rows = [line.split() for line in listed.splitlines()[1:]]
    return {key: "".join(parent) for key, *parent, kind in rows if kind == COMMITTED}


def upper_directory(mounts: str) -> str:
    """Return the directory, on the node, that a new snapshot writes to, from the mounts that `ctr` prints."""
    return _options(mounts).get("upperdir") or str(json.loads(mounts)[0]["Source"])


def lower_directory(mounts: str) -> str:
    """Return the directory, on the node, of the layer right below a snapshot, from the mounts that `ctr` prints."""
    return _options(mounts)["lowerdir"].split(":")[0]


def _share_layers(source: Runtime, target: Runtime) -> None:
    known = layers(target.do("snapshots", "list"))
    missing = {key: parent for key, parent in layers(source.do("snapshots", "list")).items() if key not in known}
    for key in parents_first(missing):
        above = source.do("snapshots", "prepare", "--mounts", DRAFT, key)
        given = source.on_machine(lower_directory(above))
        draft = target.do("snapshots", "prepare", "--mounts", DRAFT, *filter(None, [missing[key]]))
        copy = ["cp", "--archive", "--link", f"{given}/.", str(target.on_machine(upper_directory(draft)))]
        done = subprocess.run(copy, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"`{' '.join(copy)}` failed with {done.returncode}: {done.stderr[-500:]}")
        target.do("snapshots", "commit", key, DRAFT)
        source.do("snapshots", "delete", DRAFT)


def _options(mounts: str) -> dict[str, str]:
    (mount,) = json.loads(mounts)
    return {name: value for name, _, value in (option.partition("=") for option in mount["Options"])}
