"""A job whose manifest is valid, with all that is derived from it. Pure.

Everything below `admission` takes this value, so nothing there asks whether a spec is present.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.sections import Spec
from rljob_api.status import Resolved, Status
from rljob_operator.identity import Manifest, secret_name
from rljob_operator.job.cluster_shape import digest
from rljob_operator.job.job_defaults import with_defaults
from rljob_operator.job.resolved import resolved
from rljob_operator.world.claims import Claim
from rljob_operator.world.queue_decision import QueueDecision
from rljob_operator.world.world import Defaults, Job


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """An RLJob that the operator acts on."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    """its own, with the operator's settings for the pods of all jobs"""
    manifest: Manifest
    """what the driver reads: the object without what the API server adds"""
    digest: str
    """of what a RayCluster for this spec is built from"""
    status: Status
    """as it was written last"""
    resolved: Resolved
    """what it uses of the operator's defaults"""
    defaults: Defaults
    """of the operator: what the manifest leaves out, and the cluster's bounds"""

    created: str = ""
    """RFC 3339; empty: not known"""
    objection: Claim | None = None
    """why a new job like this one would be refused; this one has begun and continues. None: it would be admitted"""
    held_by: str | None = None
    """the job whose run uses this one's directory; this one waits until that has ended. None: the directory is free"""
    scheduler_labels: Mapping[str, str] = field(default_factory=dict)
    """labels of its RayCluster for a batch scheduler"""
    can_build: bool = True
    """whether all that new pods need is known: otherwise the present ones serve until they end, and none follow"""
    queue_decision: QueueDecision | None = None
    """what the queue has decided about it; None: it is not in rljob's queue"""

    has_room_without: Callable[[Sequence[str]], bool] = lambda nodes: True
    """whether all its pods would fit if these nodes were not there, as far as that is known"""

    def secret_name(self, key: str | None) -> str:
        """Return the name of the Secret with the tokens of the operator's key with this id."""
        return secret_name(self.name, self.uid, key)

    @property
    def is_suspended(self) -> bool:
        """Whether it shall have no pods now: it is suspended, or the queue has no room for it."""
        return self.spec.suspend or self.is_held

    @property
    def is_held(self) -> bool:
        """Whether the queue alone keeps it from having pods."""
        return self.queue_decision is not None and not self.queue_decision.is_reserved and not self.spec.suspend

    def with_queue_decision(self, decision: QueueDecision | None) -> "AdmittedJob":
        """Return the job as the queue lets it run: with as many engines as it holds room for."""
        if decision is None or decision.engines is None or decision.engines >= self.spec.rollout.engines:
            return replace(self, queue_decision=decision)
        return replace(self.with_engines(decision.engines), queue_decision=decision)

    def with_engines(self, engines: int) -> "AdmittedJob":
        """Return the job with another number of engines."""
        rollout = self.spec.rollout.model_copy(update={"engines": engines})
        given = self.manifest["spec"]
        manifest = {**self.manifest, "spec": {**given, "rollout": {**given.get("rollout", {}), "engines": engines}}}
        return replace(self, spec=self.spec.model_copy(update={"rollout": rollout}), manifest=manifest)


def admitted_job(job: Job, spec: Spec, defaults: Defaults, clusters: Sequence[Manifest] = ()) -> AdmittedJob:
    """Return the job with this spec, as its manifest has it; `clusters` are its RayClusters."""
    status = Status.model_validate(job.status)
    found = resolved(job, spec, status, clusters, defaults)
    return AdmittedJob(
        name=job.name,
        namespace=job.namespace,
        uid=job.uid,
        generation=job.generation,
        spec=with_defaults(spec, found.defaults or {}),
        manifest=job.manifest,
        digest=digest(job.manifest, spec),
        status=status,
        resolved=found,
        defaults=defaults,
        created=job.created,
        scheduler_labels=job.scheduler_labels,
    )
