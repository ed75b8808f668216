"""Which job holds a run directory: two runs that write into one would damage each other. Pure.

    RLJob ─► claim_of ─► RunClaim ─┐
    all other claims of its place ─┴─► holder ─► the job waits until its holder has ended or is deleted

A job holds its directory from its first attempt to its end, suspensions included. Jobs that wait for the same directory
get it in the order in which they were created. A directory and one inside of it are the same in this respect: what
deletes, moves or links the outer one does so to the inner one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from rljob_api.sections import OUR_MANAGER
from rljob_operator.identity import Manifest, manager
from rljob_operator.world.suspension import was_suspended

NOT_SHARED = ("emptyDir", "ephemeral")
"""volumes that each pod has for itself"""
NEVER_FITS = "NeverFits"
"""reason of QuotaReserved of a job that is too large for the cluster"""

Place = tuple[str, str, str]
"""namespace, source of the volume as JSON, and directory in the volume"""
DEEPEST = 32
"""components of a directory: deeper ones count as the directory that they begin with, so that an index of the
directories around each stays small
"""


OWN_NAMES = "."
"""begins the names of directories in a namespace's part of the volume that are no runs, such as the cache"""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """A job's claim to a run directory."""

    name: str
    uid: str
    place: Place
    has_begun: bool
    """whether it has had an attempt and has not ended"""
    may_begin: bool
    """whether it would begin an attempt if the directory were free"""
    created: str
    """RFC 3339, so that the order of texts is that of times"""


Runs = Mapping[Place, Mapping[str, RunClaim]]
"""All claims, by place and by the uid of their job. A directory with a slash at its end stands for all below it."""


class RunIndex:
    """The claims of all jobs, as they come and go."""

    def __init__(self) -> None:
        self._runs: dict[Place, dict[str, RunClaim]] = {}
        self._places: dict[str, Place] = {}

    @property
    def runs(self) -> Runs:
        """All claims; it changes with the index."""
        return self._runs

    def put(self, claim: RunClaim) -> None:
        """Keep a claim in place of the one that its job had."""
        self.remove(claim.uid)
        self._places[claim.uid] = claim.place
        for each in _entries_of(claim.place):
            self._runs.setdefault(each, {})[claim.uid] = claim

    def remove(self, uid: str) -> None:
        """Forget the claim of a job, if it has one."""
        place = self._places.pop(uid, None)
        for each in _entries_of(place) if place is not None else ():
            del self._runs[each][uid]
            if not self._runs[each]:
                del self._runs[each]


def overlapping(runs: Runs, place: Place) -> Iterator[RunClaim]:
    """Yield the claims to a directory, to those below it, and to those that it is in."""
    for each in (place, _below(place), *around(place)):
        yield from runs.get(each, {}).values()


def _entries_of(place: Place) -> tuple[Place, ...]:
    return place, *map(_below, around(place))


def around(place: Place) -> tuple[Place, ...]:
    """Return the directories that a directory is in, up to the root of its volume."""
    namespace, source, directory = place
    return tuple((namespace, source, str(each)) for each in PurePosixPath(directory).parents)


class Places:
    """Directories that are in use."""

    def __init__(self) -> None:
        self._at: set[Place] = set()
        self._around: set[Place] = set()

    def add(self, place: Place) -> None:
        """Count a directory among them."""
        self._at.add(place)
        self._around.update(around(place))

    def overlap(self, place: Place) -> bool:
        """Return whether one of them is this directory, inside of it or around it."""
        return place in self._at or self.has_inside(place) or any(each in self._at for each in around(place))

    def has_inside(self, place: Place) -> bool:
        """Return whether one of them is inside of this directory."""
        return place in self._around


def _below(place: Place) -> Place:
    namespace, source, directory = place
    return namespace, source, f"{directory}/"


def claim_of(raw: Manifest) -> RunClaim | None:
    """Return the claim of an RLJob; None: it has ended, or its directory is not known yet."""
    metadata, status = raw["metadata"], raw.get("status", {})
    resolved = status.get("resolved")
    if resolved is None or "completionTime" in status or manager(raw) != OUR_MANAGER:
        return None
    runtime = raw["spec"].get("runtime", {})
    where = place(metadata["namespace"], resolved, runtime.get("volumes", ()), runtime.get("volumeMounts", ()))
    if where is None:
        return None
    has_begun = bool(status.get("attempts"))
    is_kept_out = status.get("phase") == "Invalid" or _never_fits(status)
    may_begin = not (has_begun or raw["spec"].get("suspend") or was_suspended(raw) or is_kept_out)
    created = metadata.get("creationTimestamp", "")
    return RunClaim(metadata["name"], metadata["uid"], where, has_begun, may_begin, created)


def _never_fits(status: Manifest) -> bool:
    """Return whether a job is too large for the cluster: others may have the directory before it."""
    conditions = status.get("conditions", ())
    return any(each.get("type") == "QuotaReserved" and each.get("reason") == NEVER_FITS for each in conditions)


def place(
    namespace: str, resolved: Manifest, volumes: Sequence[Mapping[str, Any]], mounts: Sequence[Mapping[str, Any]]
) -> Place | None:
    """Return where the run directory of `resolved` lies; None: in no volume that pods share.

    `volumes` and `mounts` are the job's own. The operator's volume counts only where it holds the directory.
    """
    directory, volume = PurePosixPath(normpath(resolved.get("directory") or "")), resolved.get("volume")
    if volume is not None and directory.is_relative_to(volume["path"]):
        return _place(namespace, volume["source"], directory.relative_to(volume["path"]))
    holding = [mount for mount in mounts if directory.is_relative_to(str(mount.get("mountPath")))]
    if not holding:
        return None
    mount = max(holding, key=lambda each: len(PurePosixPath(str(each["mountPath"])).parts))
    source = next((each for each in volumes if each.get("name") == mount.get("name")), {})
    inside = PurePosixPath(str(mount.get("subPath") or "."), directory.relative_to(str(mount["mountPath"])))
    return _place(namespace, {key: value for key, value in source.items() if key != "name"}, inside)


def by_path(namespace: str, directory: str) -> Place:
    """Return a directory by its path in the pods, where nothing is known of its volume."""
    return namespace, "", str(PurePosixPath(*PurePosixPath(normpath(directory)).parts[:DEEPEST]))


def is_run_directory(place: PurePosixPath, namespace: PurePosixPath) -> bool:
    """Return whether a path names a run directory in this directory of a namespace."""
    if ".." in place.parts or namespace not in place.parents:
        return False
    return not place.relative_to(namespace).parts[0].startswith(OWN_NAMES)


def _place(namespace: str, source: Mapping[str, Any], inside: PurePosixPath) -> Place | None:
    if not source or any(kind in source for kind in NOT_SHARED):
        return None
    same, root = _root(source)
    directory = PurePosixPath(normpath(root / inside))
    return namespace, json.dumps(same, sort_keys=True), str(PurePosixPath(*directory.parts[:DEEPEST]))


def have_same_files(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two sources of volumes show files of one export, host path or the like.

    Not so for claims: a namespace has its own.
    """
    if any(kind in source for kind in (*NOT_SHARED, "persistentVolumeClaim") for source in (one, other)):
        return False
    (first, here), (second, there) = _root(one), _root(other)
    return first == second and (here.is_relative_to(there) or there.is_relative_to(here))


def _root(source: Mapping[str, Any]) -> tuple[Mapping[str, Any], PurePosixPath]:
    """Return what identifies a volume, and the directory in it that a source shows: two sources may overlap."""
    match source:
        case {"persistentVolumeClaim": {"claimName": name}}:
            return {"persistentVolumeClaim": name}, PurePosixPath()
        case {"nfs": {"server": str(server), "path": str(path)}}:
            return {"nfs": server.lower().rstrip(".")}, PurePosixPath(normpath(path.lstrip("/")))
        case {"hostPath": {"path": str(path)}}:
            return {"hostPath": {}}, PurePosixPath(normpath(path.lstrip("/")))
        case _:
            return {kind: _without_mode(each) for kind, each in source.items()}, PurePosixPath()


def _without_mode(source: Any) -> Any:
    """Return a source of some kind without how it is mounted."""
    return (
        {name: each for name, each in source.items() if name != "readOnly"} if isinstance(source, Mapping) else source
    )


def holder(mine: RunClaim, others: Iterable[RunClaim]) -> RunClaim | None:
    """Return the job that holds the directory of a job that wants to begin; None: it is free."""
    rivals = [each for each in others if each.uid != mine.uid]
    begun = [each for each in rivals if each.has_begun]
    earlier = [each for each in rivals if each.may_begin and _rank(each) < _rank(mine)]
    return min(begun or earlier, key=_rank, default=None)


def _rank(claim: RunClaim) -> tuple[str, str]:
    return claim.created, claim.uid
