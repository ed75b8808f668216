"""How long run directories outlive their jobs: records of them, and the Job that deletes one. Pure.

A run directory stays when its RLJob is deleted, so that the job can be applied again. With a time to live it stays for
that time only. A record, a ConfigMap that no job owns, remembers it: no finalizer holds an RLJob, and an operator that
was down when a job was deleted finds the record later.

    job with an attempt ─► record ─► no job uses the directory ─► unusedSince ─► time is over ─► Job ─► record deleted

Only directories in the operator's own volume, below its path and the namespace, are deleted.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import PurePosixPath
from typing import Any

from rljob_api.sections import OUR_MANAGER
from rljob_operator.identity import GROUP, MANAGED_BY, Manifest, manager
from rljob_operator.pods import VOLUME, pod_security, small_container
from rljob_operator.world import Defaults, Storage

RUN_LABEL = f"{GROUP}/run-of"
"""on a record and on the Job that deletes its directory: the name of the RLJob"""
DAY_S = 86_400
SCRIPT = """\
set -e
[ ! -e "$1" ] || mv -T -- "$1" "$1.deleted-$(date +%s)"
rm -rf -- "$1".deleted-*"""
"""renamed first: a job that is applied again meanwhile begins in an empty directory"""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is remembered of a run directory."""

    namespace: str
    job: str
    directory: str
    volume: str
    """source of the operator's volume at that time, as JSON with sorted keys"""
    path: str
    """where the pods mounted it"""
    ttl_s: int
    unused_since: int | None = None
    """when no job was found that uses it [unix s]"""
    uid: str = ""
    """of the ConfigMap; empty: it is not written yet"""

    @property
    def name(self) -> str:
        return f"rljob-run-{_digest(self.directory)}"

    @property
    def cleaner(self) -> str:
        """Name of the Job that deletes the directory."""
        return f"rljob-delete-{_digest(self.directory)}"


class Step(Enum):
    """What to do about a record."""

    NOTHING = auto()
    UNMARK = auto()
    """a job uses the directory again"""
    MARK = auto()
    """no job uses it any more"""
    CLEAN = auto()
    """its time is over"""


def record_of_job(raw: Manifest, defaults: Defaults) -> RunRecord | None:
    """Return the record that an RLJob should have; None: its directory is not the operator's to delete."""
    namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
    status: Manifest = raw.get("status", {})
    volume: Manifest | None = status.get("resolved", {}).get("volume")
    ttl_s = time_to_live(raw, defaults)
    if manager(raw) != OUR_MANAGER or not status.get("attempt"):
        return None
    if volume is None or ttl_s is None or "directory" not in status:
        return None
    return RunRecord(namespace, name, status["directory"], _text(volume["source"]), volume["path"], ttl_s)


def time_to_live(raw: Manifest, defaults: Defaults) -> int | None:
    """Return how long an RLJob's directory outlives it [s]; None: for ever."""
    named: int | None = raw["spec"].get("checkpoint", {}).get("ttlSecondsAfterDeletion", defaults.ttl_after_deletion_s)
    return named


def directories(raw: Manifest, storage: Storage) -> tuple[str, ...]:
    """Return the directories that an RLJob uses, or will use once the operator has seen it."""
    namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
    named = raw["spec"].get("checkpoint", {}).get("directory")
    return tuple(
        str(PurePosixPath(each))
        for each in (raw.get("status", {}).get("directory"), named, f"{storage.path}/{namespace}/{name}")
        if each
    )


def step(record: RunRecord, is_used: bool, now: float) -> Step:
    """Return what to do about a record at `now` [unix s]."""
    if is_used:
        return Step.NOTHING if record.unused_since is None else Step.UNMARK
    if record.unused_since is None:
        return Step.MARK
    return Step.CLEAN if now >= record.unused_since + record.ttl_s else Step.NOTHING


def is_ours_to_delete(record: RunRecord, storage: Storage) -> bool:
    """Return whether a record names a directory of its namespace in today's volume.

    Records can be edited by users of the namespace; what they could ask for is limited to their own runs.
    """
    place = PurePosixPath(record.directory)
    is_below = PurePosixPath(storage.path, record.namespace) in place.parents and ".." not in place.parts
    return is_below and (record.volume, record.path) == (_text(storage.source), storage.path)


def marked(record: RunRecord, unused_since: int | None) -> RunRecord:
    return replace(record, unused_since=unused_since)


def manifest(record: RunRecord) -> Manifest:
    """Return the ConfigMap of a record."""
    data = {
        "directory": record.directory,
        "volume": record.volume,
        "path": record.path,
        "ttlSeconds": str(record.ttl_s),
        **({} if record.unused_since is None else {"unusedSince": str(record.unused_since)}),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(record, record.name), "data": data}


def record_of(raw: Manifest) -> RunRecord | None:
    """Return the record that a ConfigMap is; None if somebody has broken it."""
    metadata, data = raw["metadata"], raw.get("data", {})
    try:
        return RunRecord(
            namespace=metadata["namespace"],
            job=metadata["labels"][RUN_LABEL],
            directory=data["directory"],
            volume=data["volume"],
            path=data["path"],
            ttl_s=int(data["ttlSeconds"]),
            unused_since=int(data["unusedSince"]) if "unusedSince" in data else None,
            uid=metadata["uid"],
        )
    except (KeyError, ValueError):
        return None


def cleaner(record: RunRecord, storage: Storage, image: str, pull_secrets: Sequence[str] = ()) -> Manifest:
    """Return the Job that deletes a directory; its pod passes the Pod Security Standard `restricted`."""
    command = ["sh", "-c", SCRIPT, "rljob-delete", record.directory]
    container = small_container("delete", image, command, "128Mi")
    container["volumeMounts"] = [{"name": VOLUME, "mountPath": storage.path}]
    pod = {
        "automountServiceAccountToken": False,
        "restartPolicy": "OnFailure",
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [{"name": VOLUME, **storage.source}],
        **({"imagePullSecrets": [{"name": name} for name in pull_secrets]} if pull_secrets else {}),
    }
    labels = {RUN_LABEL: record.job, **MANAGED_BY}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(record, record.cleaner),
        "spec": {
            "backoffLimit": 4,
            "activeDeadlineSeconds": DAY_S,
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def is_done(job: Mapping[str, Any]) -> bool:
    """Return whether a Job has deleted its directory."""
    conditions: Sequence[Mapping[str, Any]] = job.get("status", {}).get("conditions", ())
    return any(each["type"] == "Complete" and each["status"] == "True" for each in conditions)


def _metadata(record: RunRecord, name: str) -> Manifest:
    return {"name": name, "namespace": record.namespace, "labels": {RUN_LABEL: record.job, **MANAGED_BY}}


def _digest(directory: str) -> str:
    return hashlib.sha256(directory.encode()).hexdigest()[:12]


def _text(source: Mapping[str, Any]) -> str:
    return json.dumps(source, sort_keys=True)
