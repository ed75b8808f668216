"""The operator's key, from which the tokens of all jobs are derived, so that no Secret of a job has to be read.

It is in a separate Secret in the operator's namespace, which the first leader makes. The entry `key` is the key of
new RayClusters; every other entry is an older key, whose RayClusters go on with it. A RayCluster names its key by
an id.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from typing import Self

from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.identity import MANAGED_BY, Manifest
from rljob_operator.world.world import Job

log = logging.getLogger(__name__)

CURRENT = "key"
"""the entry with the key of new RayClusters"""
SHORTEST = 32
"""bytes of a key"""


class Keys:
    """The operator's keys, once they are loaded."""

    def __init__(self) -> None:
        self._by_id: dict[str, bytes] = {}
        self._current = ""

    @classmethod
    def of_this_process(cls) -> Self:
        """Return a new random key."""
        return cls.of(secrets.token_bytes(SHORTEST))

    @classmethod
    def of(cls, current: bytes, *older: bytes) -> Self:
        """Return these keys."""
        keys = cls()
        keys._take(current, older)
        return keys

    async def load(self, cluster: Cluster, namespace: str, name: str) -> None:
        """Read the keys, and make the Secret if there is none; raise ClusterError."""
        secret = await cluster.read("Secret", namespace, name)
        if secret is None:
            secret = await _made(cluster, namespace, name)
        current, older = _entries(secret)
        self._take(current, older)
        log.info("action=load kind=Secret name=%s key=%s older=%d", name, self._current, len(older))

    @property
    def current(self) -> str:
        """The id of the key of new RayClusters."""
        return self._current

    def __contains__(self, key: str) -> bool:
        return key in self._by_id

    def token(self, job: Job, key: str) -> str:
        """Return a job's control token by the key with this id; by the current one if the key is not known here."""
        secret = self._by_id.get(key) or self._by_id[self._current]
        return hmac.new(secret, f"control {job.namespace}/{job.name}/{job.uid}".encode(), hashlib.sha256).hexdigest()

    def seal(self, text: str) -> str:
        """Return what proves that an operator with today's key has written this text."""
        return self._seal(text, self._current)

    def has_sealed(self, text: str, seal: str) -> bool:
        """Return whether an operator with one of these keys has written this text."""
        key, _, _ = seal.partition(":")
        return key in self._by_id and hmac.compare_digest(self._seal(text, key).encode(), seal.encode())

    def _seal(self, text: str, key: str) -> str:
        return f"{key}:{hmac.new(self._by_id[key], f'seal {text}'.encode(), hashlib.sha256).hexdigest()}"

    def _take(self, current: bytes, older: tuple[bytes, ...]) -> None:
        self._by_id = {_id(each): each for each in (*older, current)}
        self._current = _id(current)


def _id(key: bytes) -> str:
    """Return a short name of a key, which does not give it away."""
    return hmac.new(key, b"id", hashlib.sha256).hexdigest()[:8]


async def _made(cluster: Cluster, namespace: str, name: str) -> Manifest:
    wanted = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "stringData": {CURRENT: secrets.token_urlsafe(SHORTEST)},
    }
    try:
        created = await cluster.create(wanted)
    except ConflictError:
        found = await cluster.read("Secret", namespace, name)
        if found is None:
            raise
        return found
    log.info("action=create kind=Secret name=%s", name)
    return created


def _entries(secret: Manifest) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the current key and the older ones."""
    where = f"Secret {secret['metadata']['namespace']}/{secret['metadata']['name']}"
    try:
        entries = {name: base64.b64decode(each, validate=True) for name, each in (secret.get("data") or {}).items()}
    except binascii.Error as error:
        raise ClusterError(f"{where}: {error}", 0) from error
    if CURRENT not in entries:
        raise ClusterError(f"{where} has no entry {CURRENT!r} with the operator's key; delete it to get a new one", 0)
    for name, each in entries.items():
        if len(each) < SHORTEST:
            raise ClusterError(f"{where}: {name!r} has {len(each)} bytes; a key has at least {SHORTEST}", 0)
    return entries.pop(CURRENT), tuple(entries.values())
