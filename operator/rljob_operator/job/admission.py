"""Whether a job can be admitted. Pure: from the manifest, and what the job uses of the operator's defaults."""

from collections.abc import Sequence
from dataclasses import replace

from rljob_operator.identity import Manifest
from rljob_operator.job import storage
from rljob_operator.job.admitted_job import AdmittedJob, admitted_job
from rljob_operator.world.claims import Claim, Reason
from rljob_operator.world.world import Defaults, Job

NO_IMAGE = "spec.runtime.image is absent, and the operator has no default: set it, or trainer.image of the chart"

NO_DIRECTORY_IMAGE = (
    "the operator has no --image to make the run directory with, and a job's image would see other runs: "
    "the administrator sets --directory-image or trainer.image of the chart"
)

OTHERS_RUNS = (
    "has files of the operator's own volume, with the runs of all namespaces; leave it out: a job without "
    "checkpoint.directory has a directory there, or name one below"
)

NO_KUEUE = "needs Kueue, and the operator does not work with it: leave it out, or set kueue.enabled of the chart"


def admission(job: Job, defaults: Defaults, clusters: Sequence[Manifest] = ()) -> AdmittedJob | Claim:
    """Return the admitted job, or why it cannot be admitted; `clusters` are its RayClusters.

    A job that has begun stays admitted, if its manifest can be read at all: what was accepted once is followed to its
    end, and freed.
    """
    bad = Claim("False", Reason.BAD_MANIFEST, "; ".join(str(problem) for problem in job.problems))
    if job.spec is not None:
        admitted = admitted_job(job, job.spec, defaults, clusters)
        missing = _missing(admitted, defaults)
        if missing is None or not job.has_begun:
            return missing or admitted
        return replace(admitted, objection=missing, can_build=False)
    if job.readable is None:
        return bad
    admitted = admitted_job(job, job.readable.spec, defaults, clusters)
    is_whole = not job.readable.left_out and _missing(admitted, defaults) is None
    return replace(admitted, objection=bad, can_build=is_whole)


def _missing(admitted: AdmittedJob, defaults: Defaults) -> Claim | None:
    """Return what a job lacks: an image, a volume for its directory, or Kueue; or which volume it must not have."""
    queue = admitted.spec.scheduling.queue
    if queue is not None and not defaults.has_kueue:
        return Claim("False", Reason.NO_KUEUE, f"spec.scheduling.queue: {queue} {NO_KUEUE}")
    resolved = admitted.resolved
    if not resolved.image:
        return Claim("False", Reason.NO_IMAGE, NO_IMAGE)
    if resolved.volume is not None and resolved.volume.sub_path is not None and resolved.directory_image is None:
        return Claim("False", Reason.NO_IMAGE, NO_DIRECTORY_IMAGE)
    whole = defaults.storage
    if whole is not None and (path := storage.others_volume(admitted, whole.source)) is not None:
        return Claim("False", Reason.BAD_MANIFEST, f"{path}: {OTHERS_RUNS} {whole.path}/{admitted.namespace}/")
    where = storage.directory(admitted)
    if not storage.is_shared(where, admitted):
        volume = defaults.storage
        below = f", or name a directory below {volume.path}/{admitted.namespace}/" if volume else ""
        message = (
            f"spec.checkpoint.directory: {where} lies in no volume of spec.runtime.volumeMounts; the driver and the "
            "learners are in different pods, and both need it: mount a volume there that many pods can write to"
            f"{below}"
        )
        return Claim("False", Reason.NOT_SHARED, message)
    return None
