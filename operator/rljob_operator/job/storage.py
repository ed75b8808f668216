"""Where a run's files lie: its directory, and the volumes that all pods of its job mount. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rljob_api.status import DefaultVolume
from rljob_operator.identity import Manifest
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.pod_roles import ROLES, role_of
from rljob_operator.job.pods import VOLUME, small_container
from rljob_operator.job.resolved import FIRST
from rljob_operator.world.run_claims import have_same_files

WHOLE_VOLUME = "/rljob-volume"
"""where the init containers mount the operator's volume: the first all of it, the second the part of the namespace"""
NAMESPACE_FIRST = "rljob-namespace-directory"
"""init container that makes the part of the namespace in the operator's volume"""
MAKE_DIRECTORIES = """\
set -e
umask 077
for directory; do
  leads_to=$(realpath -m -- "$directory")
  if [ "$leads_to" != "$directory" ]; then
    echo "$directory leads to $leads_to: a run directory is behind no link" >&2
    exit 1
  fi
  mkdir -p -- "$directory"
done"""
"""A pod may have left a link in its run directory. A kubelet follows links inside of a volume, so a run in a directory
below would get the link's target.
"""


def directory(job: AdmittedJob) -> str:
    """Return the run's directory inside the pods."""
    assert job.resolved.directory is not None, "every admitted job has one"
    return job.resolved.directory


def where(job: AdmittedJob) -> tuple[Manifest, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Return what says where the run directory lies: as in the status, and the job's own volumes and mounts."""
    resolved = job.resolved.model_dump(mode="json", by_alias=True, exclude_none=True)
    return resolved, job.spec.runtime.volumes, job.spec.runtime.volume_mounts


def cache(job: AdmittedJob) -> str:
    """Return where models are kept that the driver downloads or converts; all pods read them.

    In the operator's volume, the jobs of a namespace share them, for a model can have hundreds of gigabytes.
    """
    volume = job.resolved.volume
    if volume is None:
        return f"{directory(job)}/cache"
    return f"{volume.path}/{'cache' if volume.sub_path is None else _shared(volume.sub_path)}"


def _shared(sub_path: str) -> str:
    """Return the cache of the namespace that a run's directory belongs to. No job can have this name."""
    return f"{sub_path.partition('/')[0]}/.cache"


def is_shared(path: str, job: AdmittedJob) -> bool:
    """Return whether a directory lies in a volume that all pods of the job mount."""
    mounts = [str(mount.get("mountPath")) for mount in volume_mounts(job)]
    return any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)


def volumes(job: AdmittedJob) -> tuple[Mapping[str, Any], ...]:
    """Return the volumes of every pod, as in a pod's spec."""
    volume, own = job.resolved.volume, job.spec.runtime.volumes
    return (*own, *([{"name": VOLUME, **volume.source}] if volume and _name(job) == VOLUME else []))


def volume_mounts(job: AdmittedJob) -> tuple[Mapping[str, Any], ...]:
    """Return where every container mounts them."""
    volume = job.resolved.volume
    return (*job.spec.runtime.volume_mounts, *(_mounts(volume, _name(job)) if volume else []))


def others_volume(job: AdmittedJob, source: Mapping[str, Any]) -> str | None:
    """Return a volume of the job's own with files of this source, which has the runs of all namespaces; None: none."""
    named = [(f"spec.runtime.volumes[{index}]", each) for index, each in enumerate(job.spec.runtime.volumes)]
    for role in ROLES:
        patch = role_of(job.spec, role).template
        given = patch.spec.get("volumes") if patch is not None else None
        where = f"spec.pods.{role}.template.spec.volumes"
        named += [(f"{where}[{index}]", each) for index, each in enumerate(given if isinstance(given, list) else ())]
    sources = ((path, _source(each)) for path, each in named if isinstance(each, Mapping))
    return next((path for path, each in sources if have_same_files(each, source)), None)


def _source(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    return {kind: each for kind, each in volume.items() if kind != "name" and each is not None}


def _name(job: AdmittedJob) -> str:
    """Return the name of the pods' volume with the operator's storage.

    A job may mount the same claim for its data. A kubelet waits for ever for a pod that has a claim in two volumes.
    """
    volume = job.resolved.volume
    claim = volume.source.get("persistentVolumeClaim", {}).get("claimName") if volume else None
    same = (each for each in job.spec.runtime.volumes if claim and _claim(each) == claim)
    return str(next(same, {"name": VOLUME})["name"])


def _claim(volume: Mapping[str, Any]) -> Any:
    source = volume.get("persistentVolumeClaim")
    return source.get("claimName") if isinstance(source, Mapping) else None


def _mounts(volume: DefaultVolume, name: str) -> list[Mapping[str, Any]]:
    if volume.sub_path is None:
        return [{"name": name, "mountPath": volume.path}]
    paths = volume.sub_path, _shared(volume.sub_path)
    return [{"name": name, "mountPath": f"{volume.path}/{path}", "subPath": path} for path in paths]


def first_containers(job: AdmittedJob) -> tuple[Manifest, ...]:
    """Return the init containers that make the run's directory and the cache in the operator's volume.

    The kubelet would make them as root: not writable for the job on a hostPath, and impossible on NFS with root squash.
    No job chooses their image. The first alone mounts the whole volume, and makes one directory there. In the part of
    the namespace, which the second mounts, a link leads to nothing of other namespaces.
    """
    volume, image = job.resolved.volume, job.resolved.directory_image
    if volume is None or volume.sub_path is None or image is None:
        return ()
    name, namespace = _name(job), volume.sub_path.partition("/")[0]
    part = f"{WHOLE_VOLUME}/{namespace}"
    paths = (f"{WHOLE_VOLUME}/{path}" for path in (volume.sub_path, _shared(volume.sub_path)))
    make = ["sh", "-c", MAKE_DIRECTORIES, FIRST, *paths]
    return (
        _first(NAMESPACE_FIRST, image, ["mkdir", "-p", "--", part], {"name": name, "mountPath": WHOLE_VOLUME}),
        _first(FIRST, image, make, {"name": name, "mountPath": part, "subPath": namespace}),
    )


def _first(name: str, image: str, command: Sequence[str], mount: Manifest) -> Manifest:
    """Return an init container with this mount. The pod needs no more than without it."""
    return {
        **small_container(name, image, command, "64Mi"),
        "imagePullPolicy": "IfNotPresent",
        # The pod's status then says why it failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount],
    }
