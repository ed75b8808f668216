"""How long run directories outlive their jobs: records of them, and the Job that deletes one. Pure.

A run directory stays when its RLJob is deleted, so that the job can be applied again. With a time to live it stays for
that time only. A record, a ConfigMap that no job owns, remembers it: no finalizer holds an RLJob, and an operator that
was down when a job was deleted finds the record later.

    job with an attempt ─► record ─► no job uses the directory ─► unusedSince ─► time is over ─► Job ─► record deleted

Only directories in the operator's own volume, below its path and the namespace, are deleted. Users of the namespace may
write such ConfigMaps, so a record has the operator's seal; one without it, as of older operators, counts for nothing. A
job uses its directory, all below it, and those that it is in. Jobs of other clusters with the same volume are not known
here: the Job that deletes also looks at the files.
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
from rljob_operator.job.pods import VOLUME, pod_security, small_container
from rljob_operator.world.run_claims import OWN_NAMES, Place, by_path, is_run_directory, place
from rljob_operator.world.world import Defaults, Storage

RUN_LABEL = f"{GROUP}/run-of"
"""on a record and on the Job that deletes its directory: the name of the RLJob"""
DAY_S = 86_400
SEAL = "seal"
"""entry of a record with the operator's seal"""
ALIVE_S = 900
"""A driver touches its `driver.json` every minute. One that was touched within this time is at work [s]"""
DRIVER = "driver.json"
SCRIPT = """\
set -e
deleted=$1 ttl=$2 alive=$3 driver=$4 directory=$5
refuse() { rm -rf -- "$deleted"; echo "$directory $1: it is kept" >&2; exit 1; }
before() { touch -d "@$(($(stat -c %Y -- "$deleted/now") - $1))" -- "$deleted/$2"; }
if [ -e "$directory" ] || [ -L "$directory" ]; then
  leads_to=$(realpath -m -- "$directory")
  [ "$leads_to" = "$directory" ] || refuse "leads to $leads_to"
  mkdir -p -- "$deleted"
  touch -- "$deleted/now"
  before "$ttl" ttl
  before "$alive" alive
  used=$(find "$directory" -newer "$deleted/ttl" -print -quit)
  [ -z "$used" ] || refuse "was written to within $ttl s"
  used=$(find "$directory" -name "$driver" -newer "$deleted/alive" -print -quit)
  [ -z "$used" ] || refuse "has a driver at work"
  mv -T -- "$directory" "$deleted/run"
fi
rm -rf -- "$deleted"
"""
"""Moved first: a job that is applied again meanwhile begins in an empty directory. The times are those of the volume's
server. A find that cannot read a directory ends the script.
"""


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
    def place(self) -> Place:
        """The directory, to compare with those of jobs."""
        volume = {"source": json.loads(self.volume), "path": self.path}
        found = place(self.namespace, {"directory": self.directory, "volume": volume}, (), ())
        return found or by_path(self.namespace, self.directory)

    @property
    def sealed_text(self) -> str:
        """All that the record says, for the operator's seal."""
        said = [self.namespace, self.job, self.directory, self.volume, self.path, self.ttl_s, self.unused_since]
        return f"run record {json.dumps(said)}"

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


def used_places(raw: Manifest, storage: Storage) -> tuple[Place, ...]:
    """Return the directories that an RLJob uses: by path, in the operator's volume and in the job's volumes.

    A directory counts in all: which one its pods see there is not always known.
    """
    namespace, runtime = raw["metadata"]["namespace"], raw["spec"].get("runtime", {})
    resolved = raw.get("status", {}).get("resolved", {}).get("volume")
    today = {"source": dict(storage.source), "path": storage.path}
    own = runtime.get("volumes", ()), runtime.get("volumeMounts", ())
    found = {
        place(namespace, {"directory": each, "volume": volume}, *own)
        for each in directories(raw, storage)
        for volume in (today, resolved, None)
    }
    return (*filter(None, found), *(by_path(namespace, each) for each in directories(raw, storage)))


def step(record: RunRecord, is_used: bool, now: float) -> Step:
    """Return what to do about a record at `now` [unix s]."""
    if is_used:
        return Step.NOTHING if record.unused_since is None else Step.UNMARK
    if record.unused_since is None:
        return Step.MARK
    return Step.CLEAN if now >= record.unused_since + record.ttl_s else Step.NOTHING


def is_ours_to_delete(record: RunRecord, storage: Storage) -> bool:
    """Return whether a record names a directory of its namespace in today's volume.

    A record with the operator's seal is still not trusted beyond this.
    """
    is_run = is_run_directory(PurePosixPath(record.directory), PurePosixPath(storage.path, record.namespace))
    return is_run and (record.volume, record.path) == (_text(storage.source), storage.path)


def marked(record: RunRecord, unused_since: int | None) -> RunRecord:
    return replace(record, unused_since=unused_since)


def manifest(record: RunRecord) -> Manifest:
    """Return the ConfigMap of a record, without its seal."""
    data = {
        "directory": record.directory,
        "volume": record.volume,
        "path": record.path,
        "ttlSeconds": str(record.ttl_s),
        **({} if record.unused_since is None else {"unusedSince": str(record.unused_since)}),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(record, record.name), "data": data}


def record_of(raw: Manifest) -> RunRecord | None:
    """Return the record that a ConfigMap is, by any writer; None if it is damaged."""
    metadata, data = raw["metadata"], raw.get("data", {})
    try:
        json.loads(data["volume"])
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
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def cleaner(record: RunRecord, storage: Storage, image: str, pull_secrets: Sequence[str] = ()) -> Manifest:
    """Return the Job that deletes a directory; its pod passes the Pod Security Standard `restricted`.

    It sees the runs of its namespace alone, even through links.
    """
    part = f"{storage.path}/{record.namespace}"
    deleted = f"{part}/{OWN_NAMES}{record.cleaner}"
    rest = [deleted, str(record.ttl_s), str(ALIVE_S), DRIVER, record.directory]
    container = small_container("delete", image, ["sh", "-c", SCRIPT, "rljob-delete", *rest], "128Mi")
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    container["volumeMounts"] = [{"name": VOLUME, "mountPath": part, "subPath": record.namespace}]
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
