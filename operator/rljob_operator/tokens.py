"""The control tokens of all jobs, and which of their Secrets are gone.

Secrets are not watched: that would need the right to read all of them. So a job's Secret is read once, again every five
minutes, and soon when a pod cannot start for want of a Secret, or a driver refuses the token.
"""

import binascii
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from rljob_operator.children import TOKEN_KEY, decoded
from rljob_operator.cluster import Cluster, ConflictError
from rljob_operator.identity import RAY_TOKEN_KEY, Manifest, job_name
from rljob_operator.plan import Target
from rljob_operator.pod_stage import Stage
from rljob_operator.world import Driver, Job, Pod

log = logging.getLogger(__name__)

LOOK_S = 300.0
"""between two looks at a Secret that nothing points at [s]"""
DOUBT_S = 10.0
"""the same when something does [s]"""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job's Secret."""

    uid: str
    """of the job"""
    token: str
    is_there: bool
    looked_at: float
    """[unix s]"""
    has_ray_token: bool
    """whether it also holds Ray's token; one that an older operator has made does not"""


class Tokens:
    """The control tokens of all jobs."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        """`clock` returns unix seconds."""
        self._cluster = cluster
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._remade_at: dict[str, float] = {}
        """by job, when its Secret was deleted to be made again [unix s]"""

    def proposed(self, job: Job) -> str:
        """Return the token of a Secret that is made now: the known one, which a running driver has, or a random one."""
        known = self._of(job)
        return known.token if known is not None else secrets.token_urlsafe(32)

    def has_ray_token(self, job: Job) -> bool:
        """Return whether the job's Secret holds Ray's token, as one that is made now does."""
        known = self._of(job)
        return known is None or known.has_ray_token

    async def has_secret(self, job: Job, pods: tuple[Pod, ...], driver: Driver | None) -> bool:
        """Return whether the job's Secret exists; raise ClusterError. Before its first attempt a job has none."""
        if not job.has_begun:
            return False
        is_refused = driver is not None and driver.refuses_since is not None
        is_doubted = is_refused or any(_lacks_configuration(pod) for pod in pods)
        known = self._of(job)
        if known is None or self._clock() - known.looked_at >= (DOUBT_S if is_doubted else LOOK_S):
            known = await self._look(job, is_refused)
        if known is None or not known.is_there:
            return False
        if any(_lacks_a_key(pod, job) for pod in pods) and self._may_remake(job):
            await self._remake(job, known)
            return False
        return True

    async def token(self, job: Job) -> str | None:
        """Return the control token; None: the job has none yet."""
        known = self._of(job) or await self._look(job, is_refused=False)
        return known.token if known is not None else None

    async def create(self, job: Job, secret: Manifest) -> None:
        """Create the Secret unless it exists; then its token is the valid one."""
        log.info("action=create kind=Secret name=%s", secret["metadata"]["name"])
        try:
            created = await self._cluster.create_secret(secret)
        except ConflictError:
            self._known.pop(job.key, None)
            return
        self._remember(job, decoded(created["data"][TOKEN_KEY]), RAY_TOKEN_KEY in created["data"])

    def forget(self, key: str) -> None:
        """Forget a job's token: its Secret was deleted, or is not known any more."""
        self._known.pop(key, None)
        self._remade_at.pop(key, None)

    async def _look(self, job: Job, is_refused: bool) -> Known | None:
        """Read the Secret. A running driver keeps the token that it began with, so the known one stays valid until the
        driver refuses it.
        """
        known = self._of(job)
        if known is None and "completionTime" in job.status:
            return None  # no driver is left to contact
        found = await self._read(job)
        if found is not None:
            token, has_ray_token = found
            return self._remember(job, token if known is None or is_refused else known.token, has_ray_token)
        if known is None:
            return None
        log.warning("action=look kind=Secret name=%s outcome=missing", job_name(job.name, job.uid))
        return self._gone(job, known)

    def _gone(self, job: Job, known: Known) -> Known:
        """Remember that a Secret is to be made again; the next one has the same token, and all keys."""
        self._known[job.key] = gone = replace(known, is_there=False, looked_at=self._clock(), has_ray_token=True)
        return gone

    def _may_remake(self, job: Job) -> bool:
        """Return whether the kubelet has had the time to find the Secret that was made again, if one was."""
        return self._clock() - self._remade_at.get(job.key, 0.0) >= LOOK_S

    async def _remake(self, job: Job, known: Known) -> None:
        """Delete a Secret, which cannot be changed."""
        name = job_name(job.name, job.uid)
        log.warning("action=delete kind=Secret name=%s reason=LacksKey", name)
        await self._cluster.delete(Target("Secret", job.namespace, name))
        self._remade_at[job.key] = self._gone(job, known).looked_at

    async def _read(self, job: Job) -> tuple[str, bool] | None:
        """Return the token of the Secret, and whether it holds Ray's, too; None: there is none.

        One without a token is deleted: no pod can use it.
        """
        name = job_name(job.name, job.uid)
        secret = await self._cluster.read_secret(job.namespace, name)
        if secret is None:
            return None
        try:
            return decoded(secret["data"][TOKEN_KEY]), RAY_TOKEN_KEY in secret["data"]
        except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
            log.warning("action=delete kind=Secret name=%s reason=NoToken", name)
            await self._cluster.delete(Target("Secret", job.namespace, name, secret["metadata"]["uid"]))
            return None

    def _of(self, job: Job) -> Known | None:
        known = self._known.get(job.key)
        return known if known is not None and known.uid == job.uid else None

    def _remember(self, job: Job, token: str, has_ray_token: bool) -> Known:
        self._known[job.key] = known = Known(job.uid, token, True, self._clock(), has_ray_token)
        return known


def _lacks_configuration(pod: Pod) -> bool:
    """Return whether the kubelet cannot start a container for want of a Secret or ConfigMap."""
    return pod.stage is not None and pod.stage.stage is Stage.CONFIG


def _lacks_a_key(pod: Pod, job: Job) -> bool:
    """Return whether the job's Secret lacks a key that a container needs, because an older operator has made it."""
    if pod.stage is None or not _lacks_configuration(pod):
        return False
    said = pod.stage.text
    return "find key" in said and f"in Secret {job.namespace}/{job_name(job.name, job.uid)}" in said
