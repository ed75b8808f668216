"""What a job uses of the operator's defaults: image, resources, volume, run directory, pods for tools. Pure.

    spec ──────────────────────────┐
    status.resolved, or RayCluster ─┼─► resolved ─► status.resolved
    defaults of today ─────────────┘

It is decided once and recorded in the status. From the first attempt on, the recorded values stay, even if the chart
changes: pods of one cluster never get two images, and a run never moves to another directory.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rljob_api.errors import UNREADABLE
from rljob_api.sections import Spec
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.sizing.topology import gpu_resource
from rljob_api.status import DefaultVolume, Resolved, Status, ToolPodOwner
from rljob_operator.identity import TOOL_POD_OWNER_ANNOTATION, Manifest, attempt_of_cluster
from rljob_operator.job.pod_roles import HEAD, role_of
from rljob_operator.job.pods import VOLUME
from rljob_operator.world.run_claims import is_run_directory
from rljob_operator.world.world import Defaults, Job, is_deleting

FIRST = "rljob-run-directory"
"""init container that makes the run's directory in its namespace's part of the operator's volume"""
FIRST_BEFORE = "run-directory"
"""the same of an older operator: it mounted the whole volume, at `/rljob-volume`"""


def resolved(job: Job, spec: Spec, status: Status, clusters: Sequence[Manifest], defaults: Defaults) -> Resolved:
    """Return what this job uses. `status` is the one written last, `clusters` are the job's RayClusters.

    The image is None if neither the spec nor the operator names one.
    """
    before = _before(job, spec, status, clusters, defaults)
    volume, directory = _place(job, spec, before, defaults)
    image = spec.runtime.image or before.image or defaults.image
    return Resolved(
        image=image,
        directory=directory,
        volume=volume,
        directory_image=_directory_image(image, before, defaults) if volume else None,
        head_resources=_resources(spec.runtime.head_resources, before.head_resources, defaults.head_resources),
        worker_resources=_resources(spec.runtime.worker_resources, before.worker_resources, defaults.worker_resources),
        defaults=(before.defaults if before.image is not None else dict(defaults.settings)) or None,
        tool_pod_owner=_tool_pod_owner(spec, before, defaults),
    )


def _directory_image(image: str | None, before: Resolved, defaults: Defaults) -> str | None:
    """Return an image for containers that see other runs: one of the operator's, never the job's.

    A job with the default image needs no second one on its nodes. What a RayCluster shows does not count: users of a
    namespace may write one.
    """
    own = defaults.image if image == defaults.image else defaults.directory_image or defaults.image
    return before.directory_image or own


def _before(job: Job, spec: Spec, status: Status, clusters: Sequence[Manifest], defaults: Defaults) -> Resolved:
    """Return what was decided earlier; empty: nothing.

    Until the first attempt nothing exists that a new decision could tear apart: a changed spec is decided anew.
    """
    known = status.resolved
    if known is not None and (status.attempt > 0 or status.observed_generation == job.generation):
        return known
    kept = [cluster for cluster in clusters if not is_deleting(cluster)]
    for cluster in sorted(kept, key=_built_for, reverse=True):
        found = _seen_in(cluster, spec, status.directory, defaults)
        if found is not None:
            return found
    return Resolved(directory=status.directory if status.attempt > 0 else None)


def _built_for(cluster: Manifest) -> int:
    return attempt_of_cluster(cluster["metadata"]["name"])


def _seen_in(cluster: Manifest, spec: Spec, directory: str | None, defaults: Defaults) -> Resolved | None:
    """Return what a RayCluster was built with, for a job whose status does not have it; None: no operator built it.

    A user who may write RayClusters can give one any name and owner, and a shape that the operator never makes.
    """
    try:
        return _built_with(cluster, spec, directory, defaults)
    except UNREADABLE:
        return None


def _built_with(cluster: Manifest, spec: Spec, directory: str | None, defaults: Defaults) -> Resolved:
    head, *workers = (
        group["template"]["spec"]
        for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"].get("workerGroupSpecs", []))
    )
    container = head["containers"][0]
    return Resolved(
        image=container.get("image"),
        directory=directory,
        volume=_default_volume(head),
        head_resources=None if role_of(spec, HEAD).resources else container.get("resources", {}),
        worker_resources=_worker_resources(workers, spec),
        defaults=dict(defaults.settings),  # a RayCluster does not show which of its settings were defaults
        tool_pod_owner=_owner_beside(cluster),
    )


def _owner_beside(cluster: Manifest) -> ToolPodOwner | None:
    """Return what makes the pods for tools that go with a RayCluster; None: there are none, or it is an older one."""
    named = (cluster["metadata"].get("annotations") or {}).get(TOOL_POD_OWNER_ANNOTATION)
    return ToolPodOwner(named) if named is not None else None


def _default_volume(pod: Manifest) -> DefaultVolume | None:
    """Return the operator's volume as a pod mounts it; it can be a volume of the job's own with the same claim."""
    mounts = pod["containers"][0].get("volumeMounts", [])
    names = (FIRST, FIRST_BEFORE)
    first = next((each for each in pod.get("initContainers", []) if each["name"] in names), None)
    if first is None:
        name, mounts = VOLUME, [each for each in mounts if each["name"] == VOLUME]
    else:
        # The last two arguments of both are the paths of the run directory and of the cache, below the same mount.
        name, sub_path = first["volumeMounts"][0]["name"], first["command"][-2].split("/", 2)[2]
        mounts = [each for each in mounts if each["name"] == name and each.get("subPath") == sub_path]
    sources = [each for each in pod.get("volumes", []) if each["name"] == name]
    if not mounts or not sources:
        return None
    return _mounted({key: value for key, value in sources[0].items() if key != "name"}, mounts[0])


def _mounted(source: Mapping[str, Any], mount: Mapping[str, Any]) -> DefaultVolume:
    sub_path = mount.get("subPath")
    path = str(mount["mountPath"]).removesuffix(f"/{sub_path}")
    return DefaultVolume(source=dict(source), path=path, sub_path=sub_path)


def _worker_resources(workers: Sequence[Manifest], spec: Spec) -> dict[str, Any] | None:
    """Return the resources without GPUs that pods have by default; None: the pods have resources of their roles."""
    if role_of(spec, "trainer").resources or role_of(spec, "rollout").resources:
        return None
    return _without_gpus(workers[0]["containers"][0].get("resources", {}) if workers else {}, gpu_resource(spec))


def _without_gpus(resources: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """Return a container's resources without the GPUs, which follow from the spec."""
    kept = {
        kind: {name: amount for name, amount in each.items() if name != gpu} if isinstance(each, Mapping) else each
        for kind, each in resources.items()
    }
    return {kind: each for kind, each in kept.items() if each}


def _place(job: Job, spec: Spec, before: Resolved, defaults: Defaults) -> tuple[DefaultVolume | None, str]:
    """Return the default volume, if the job mounts it, and the run directory."""
    named = spec.checkpoint.directory
    if before.directory is not None and named in (None, before.directory) and before.image is not None:
        return before.volume, before.directory
    volume = before.volume or _volume(defaults)
    if named is not None:
        return (_part(volume, named) if volume and _is_in_volume(named, volume, job, spec) else None), named
    if before.directory is not None:
        return _part(volume, before.directory), before.directory  # admission says whether a volume of today holds it
    if volume is None:
        return None, f"runs/{job.name}"
    # By name: a job that is restored, moved or applied again finds its run, and resumes from its newest checkpoint.
    place = f"{job.namespace}/{job.name}"
    return volume.model_copy(update={"sub_path": place}), f"{volume.path}/{place}"


def _part(volume: DefaultVolume | None, directory: str) -> DefaultVolume | None:
    """Return the volume of which only this directory is mounted: a job's pods reach no run but their own.

    None: the directory is not in it, and nothing of it is mounted.
    """
    place = PurePosixPath(directory)
    if volume is None or ".." in place.parts or PurePosixPath(volume.path) not in place.parents:
        return None
    return volume.model_copy(update={"sub_path": str(place.relative_to(volume.path))})


def _is_in_volume(directory: str, volume: DefaultVolume, job: Job, spec: Spec) -> bool:
    """Return whether a directory is in the job's namespace of the operator's volume, and in no volume of the job."""
    place = PurePosixPath(directory)
    mounts = (str(mount.get("mountPath")) for mount in spec.runtime.volume_mounts)
    if any(place.is_relative_to(mount) for mount in mounts):
        return False
    return is_run_directory(place, PurePosixPath(volume.path, job.namespace))


def _volume(defaults: Defaults) -> DefaultVolume | None:
    storage = defaults.storage
    return DefaultVolume(source=dict(storage.source), path=storage.path) if storage is not None else None


def _tool_pod_owner(spec: Spec, before: Resolved, defaults: Defaults) -> ToolPodOwner | None:
    """Return what makes the pods for the job's tools; two owners of pods of one name would disturb each other."""
    if before.image is not None:
        return before.tool_pod_owner
    return defaults.tool_pod_owner if num_tool_pods(spec) > 0 else None


def _resources(
    named: Mapping[str, Any], before: Mapping[str, Any] | None, default: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the spec's resources, or those decided earlier, or the default ones."""
    return dict(named or (default if before is None else before))
