"""The pod that reads logs from a job's volume when the job's own pods are gone. Pure.

It mounts the volume read-only, waits for one `tail` through exec, and is deleted after it. If it is not
deleted, it ends by itself. The output of a container goes through the node's log file, which is cut at 10 MiB; that of
exec does not.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rljob_cli.jobs.job_logs import Log
from rljob_cli.jobs.jobs import Job, Manifest
from rljob_operator.job.job_defaults import pull_secrets
from rljob_operator.job.pods import pod_security, small_container

LIFE_S = 600
"""of the pod, at most [s]"""
LOST_WITH_PODS = ("emptyDir", "ephemeral")
"""volumes whose content goes with their pod"""
VOLUME = "run"


def reader(job: Job, log: Log) -> Manifest | None:
    """Return the pod that can read a log; None: no volume has it, or the job's image is not known."""
    resolved = job.status.resolved
    image = (resolved.image if resolved else None) or job.runtime.get("image")
    found = _volume(job, log.file) if log.file else None
    if found is None or not image:
        return None
    source, mount = found
    container = small_container("read", image, ["sleep", str(LIFE_S)], "128Mi")
    container["volumeMounts"] = [{**mount, "name": VOLUME, "readOnly": True}]
    defaults = (resolved.defaults if resolved else None) or {}
    secrets = dict.fromkeys((*pull_secrets(defaults), *job.runtime.get("imagePullSecrets", ())))
    pod = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_S,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [{**source, "name": VOLUME}],
        **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
    }
    labels = {"app.kubernetes.io/managed-by": "rljob-logs"}
    metadata = {"generateName": f"{job.name}-logs-", "namespace": job.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _volume(job: Job, file: str) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the source of the volume that has a file, and its mount."""
    resolved = job.status.resolved
    candidates: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    if resolved is not None and resolved.volume is not None:
        volume = resolved.volume
        part = {"subPath": volume.sub_path} if volume.sub_path else {}
        where = f"{volume.path}/{volume.sub_path}" if volume.sub_path else volume.path
        candidates.append((volume.source, {"mountPath": where, **part}))
    named = {volume.get("name"): volume for volume in job.runtime.get("volumes", ())}
    mounts = [mount for mount in job.runtime.get("volumeMounts", ()) if mount.get("name") in named]
    candidates.extend((named[mount["name"]], mount) for mount in mounts)
    fitting = [
        (source, mount)
        for source, mount in candidates
        if PurePosixPath(file).is_relative_to(str(mount.get("mountPath"))) and not set(LOST_WITH_PODS) & set(source)
    ]
    # The innermost mount is what a pod sees at this path.
    return max(fitting, key=lambda each: len(str(each[1]["mountPath"])), default=None)
