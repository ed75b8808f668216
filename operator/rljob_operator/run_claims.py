"""Which job holds a run directory: two runs that write into one would damage each other. Pure.

    RLJob ─► claim_of ─► RunClaim ─┐
    all other claims of its place ─┴─► holder ─► the job waits until its holder has ended or is deleted

A job holds its directory from its first attempt to its end, suspensions included. Jobs that wait for the same directory
get it in the order in which they were created.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from rljob_api.sections import OUR_MANAGER
from rljob_operator.identity import Manifest, manager
from rljob_operator.suspension import was_suspended

NOT_SHARED = ("emptyDir", "ephemeral")
"""volumes that each pod has for itself"""

Place = tuple[str, str, str]
"""namespace, source of the volume as JSON, and directory in the volume"""


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
"""all claims, by place and by the uid of their job"""


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
    may_begin = not (has_begun or raw["spec"].get("suspend") or was_suspended(raw) or status.get("phase") == "Invalid")
    created = metadata.get("creationTimestamp", "")
    return RunClaim(metadata["name"], metadata["uid"], where, has_begun, may_begin, created)


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


def _place(namespace: str, source: Mapping[str, Any], inside: PurePosixPath) -> Place | None:
    if not source or any(kind in source for kind in NOT_SHARED):
        return None
    claim = source.get("persistentVolumeClaim")
    same = {"persistentVolumeClaim": claim.get("claimName")} if isinstance(claim, Mapping) else source
    return namespace, json.dumps(same, sort_keys=True), normpath(str(inside))


def holder(mine: RunClaim, others: Iterable[RunClaim]) -> RunClaim | None:
    """Return the job that holds the directory of a job that wants to begin; None: it is free."""
    rivals = [each for each in others if each.uid != mine.uid]
    begun = [each for each in rivals if each.has_begun]
    earlier = [each for each in rivals if each.may_begin and _rank(each) < _rank(mine)]
    return min(begun or earlier, key=_rank, default=None)


def _rank(claim: RunClaim) -> tuple[str, str]:
    return claim.created, claim.uid
