"""The control tokens of all jobs, and which of their Secrets have to be made.

A token is derived from the operator's key (`keys.py`), so the operator needs no right to read Secrets. It finds out
that one is there by creating it: every five minutes, and soon when a pod cannot start for want of a Secret. The name
of a Secret has the key's id, so what is there under it holds the right tokens, unless a driver refuses them.

A RayCluster names the key of its pods' tokens in an annotation. One without it is of an older operator, which made
tokens at random: its Secret is read, where the chart permits that. Otherwise its driver refuses the derived token, and
the RayCluster is replaced; the hooks of its pods let the driver save.
"""

import binascii
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rljob_operator.children.children import TOKEN_KEY, decoded
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest, attempt_of_cluster, secret_name, token_key
from rljob_operator.plan import Target
from rljob_operator.world.pod_stage import Stage
from rljob_operator.world.world import Driver, Job, Pod, is_deleting

log = logging.getLogger(__name__)

LOOK_S = 300.0
"""between two looks for a Secret that nothing points at [s]"""
DOUBT_S = 10.0
"""the same when something does [s]"""
FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job's Secret."""

    uid: str
    """of the job"""
    key: str | None
    """id of the key of the job's RayCluster; None: an older operator made its token at random"""
    token: str
    is_there: bool
    looked_at: float
    """[unix s]"""
    may_stay: bool = True
    """whether a Secret that exists already is trusted; otherwise it is replaced"""


class Tokens:
    """The control tokens of all jobs."""

    def __init__(self, cluster: Cluster, keys: Keys, clock: Callable[[], float]) -> None:
        """`clock` returns unix seconds."""
        self._cluster = cluster
        self._keys = keys
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._remade_at: dict[str, float] = {}
        """by job, when its Secret was found wrong [unix s]"""

    @property
    def key(self) -> str:
        """The id of the key of new RayClusters."""
        return self._keys.current

    def key_of_secret(self, job: Job) -> str | None:
        """Return the id of the key of that token; None: an older operator made it at random."""
        known = self._of(job)
        return known.key if known is not None else self.key

    def token(self, job: Job) -> str:
        """Return the control token, which a Secret that is made now holds."""
        known = self._of(job)
        return known.token if known is not None else self._keys.token(job, self.key)

    def is_sure(self, job: Job) -> bool:
        """Return whether the token is surely that of the pods: otherwise a driver that refuses it may be right."""
        known = self._of(job)
        return known is None or (known.key is not None and known.key in self._keys)

    async def has_secret(
        self, job: Job, children: Iterable[Manifest], pods: tuple[Pod, ...], driver: Driver | None
    ) -> bool:
        """Return whether the job's Secret needs not be made now; raise ClusterError.

        Before its first attempt, and after its last, a job needs none.
        """
        cluster = _newest_cluster(children)
        if "completionTime" in job.status or not (job.has_begun or cluster):
            return False
        is_refused = driver is not None and driver.refuses_since is not None
        is_doubted = is_refused or any(_lacks_configuration(pod) for pod in pods)
        known = await self._known_for(job, cluster)
        if known.is_there and self._clock() - known.looked_at >= (DOUBT_S if is_doubted else LOOK_S):
            known = await self._look(job, known, is_refused)
        if known.is_there and any(_lacks_a_key(pod, job) for pod in pods) and self._may_remake(job):
            known = self._wrong(job, known, "LacksKey")
        return known.is_there

    async def create(self, job: Job, secret: Manifest) -> None:
        """Create the Secret, or find that it exists; one that may hold something else is replaced."""
        known = self._of(job) or self._begun(job)
        name = secret["metadata"]["name"]
        try:
            await self._cluster.create_secret(secret)
        except ConflictError:
            if not known.may_stay:
                log.warning("action=replace kind=Secret name=%s", name)
                await self._cluster.delete(Target("Secret", job.namespace, name))
                await self._cluster.create_secret(secret)
        else:
            log.info("action=create kind=Secret name=%s", name)
        self._keep(job, replace(known, is_there=True, looked_at=self._clock(), may_stay=True))

    def forget(self, key: str) -> None:
        """Forget a job's token: its Secret was deleted, or is not known any more."""
        self._known.pop(key, None)
        self._remade_at.pop(key, None)

    async def _known_for(self, job: Job, cluster: Manifest | None) -> Known:
        """Return what is known of the Secret of this RayCluster; without one, the next begins with the current key."""
        known = self._of(job)
        if cluster is None:
            return known if known is not None and known.key == self.key else self._begun(job)
        key = token_key(cluster)
        if known is not None and known.key == key:
            return known
        if key is not None:
            return self._keep(job, Known(job.uid, key, self._keys.token(job, key), True, self._clock()))
        return await self._read(job, Known(job.uid, None, self._keys.token(job, self.key), True, self._clock()))

    def _begun(self, job: Job) -> Known:
        """Return the beginning with the current key."""
        return self._keep(job, Known(job.uid, self.key, self._keys.token(job, self.key), False, self._clock()))

    async def _look(self, job: Job, known: Known, is_refused: bool) -> Known:
        """Look at a Secret of an older operator, and have any other one created if it is gone."""
        if known.key is None:
            return await self._read(job, known, is_refused)
        if is_refused and self._may_remake(job):
            return self._wrong(job, known, "TokenRefused")
        return self._keep(job, replace(known, is_there=False, looked_at=self._clock()))

    async def _read(self, job: Job, known: Known, is_refused: bool = True) -> Known:
        """Read the Secret of an older operator. A running driver keeps the token that it began with, so the known one
        stays valid until the driver refuses it.
        """
        known, name = replace(known, looked_at=self._clock()), secret_name(job.name, job.uid, None)
        try:
            secret = await self._cluster.read_secret(job.namespace, name)
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            log.warning("action=look outcome=forbidden will try again: %s", error)
            return self._keep(job, known)
        if secret is None:
            log.warning("action=look kind=Secret name=%s outcome=missing", name)
            return self._keep(job, replace(known, is_there=False))
        try:
            token = decoded(secret["data"][TOKEN_KEY])
        except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
            return self._wrong(job, known, "NoToken")
        return self._keep(job, replace(known, token=token if is_refused else known.token))

    def _may_remake(self, job: Job) -> bool:
        """Return whether the kubelet has had the time to find the Secret that was made again, if one was."""
        return self._clock() - self._remade_at.get(job.key, 0.0) >= LOOK_S

    def _wrong(self, job: Job, known: Known, reason: str) -> Known:
        """Have a Secret replaced, which cannot be changed."""
        name = secret_name(job.name, job.uid, known.key)
        log.warning("action=look kind=Secret name=%s outcome=wrong reason=%s", name, reason)
        self._remade_at[job.key] = self._clock()
        return self._keep(job, replace(known, is_there=False, looked_at=self._clock(), may_stay=False))

    def _of(self, job: Job) -> Known | None:
        known = self._known.get(job.key)
        return known if known is not None and known.uid == job.uid else None

    def _keep(self, job: Job, known: Known) -> Known:
        self._known[job.key] = known
        return known


def _newest_cluster(children: Iterable[Manifest]) -> Manifest | None:
    """Return the job's newest RayCluster that stays."""
    kept = (each for each in children if each["kind"] == "RayCluster" and not is_deleting(each))
    return max(kept, key=lambda each: attempt_of_cluster(each["metadata"]["name"]), default=None)


def _lacks_configuration(pod: Pod) -> bool:
    """Return whether the kubelet cannot start a container for want of a Secret or ConfigMap."""
    return pod.stage is not None and pod.stage.stage is Stage.CONFIG


def _lacks_a_key(pod: Pod, job: Job) -> bool:
    """Return whether the job's Secret lacks a key that a container needs, because an older operator has made it."""
    if pod.stage is None or not _lacks_configuration(pod):
        return False
    said = pod.stage.text
    return "find key" in said and f"in Secret {job.namespace}/{secret_name(job.name, job.uid, None)}" in said
