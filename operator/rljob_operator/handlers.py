"""kopf's part: watches that show every change. Nothing is decided or written here, so nothing of kopf is ever written
into users' objects: no annotations, no finalizers.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import kopf

from rljob_operator.cluster import CHILDREN, KINDS
from rljob_operator.identity import JOB_LABEL, KIND, Manifest

Seen = Callable[[Manifest, bool], None]
"""takes an object, and whether it is gone"""

SERVER_TIMEOUT_S = 300
CLIENT_TIMEOUT_S = 330
CONNECT_TIMEOUT_S = 10
CHUNK = 500
IDLE_S = 0.5
"""after so long without an event kopf forgets its worker for an object, and the object that it holds [s]"""


def registry(seen: Seen, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """Return the handlers: one for RLJobs, and one for each kind of their children."""
    handlers = kopf.OperatorRegistry()

    def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**given) if kubeconfig else kopf.login_with_service_account(**given)

    kopf.on.login(registry=handlers)(login)
    for kind in (KIND, *CHILDREN):
        group, version, plural = resource(kind)
        kopf.on.event(group, version, plural, id=f"see-{kind}", registry=handlers)(_handler(kind, seen))
    return handlers


def watching() -> kopf.OperatorSettings:
    """Return the settings: watches that notice their own death, and only objects of ours."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = SERVER_TIMEOUT_S
    settings.watching.client_timeout = CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.chunk_size = CHUNK
    settings.queueing.idle_timeout = IDLE_S
    settings.persistence.diffbase_storage = NoDifferences()
    settings.persistence.progress_storage = NoProgress()
    for kind in CHILDREN:
        settings.watching.label_selectors[resource(kind)] = JOB_LABEL
    return settings


class NoDifferences(kopf.DiffBaseStorage):
    """Nothing. kopf would copy every object of every event to find differences for handlers that we do not have."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("kopf writes nothing into objects")


class NoProgress(kopf.ProgressStorage):
    """Nothing: `on.event` handlers have no progress."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("kopf writes nothing into objects")

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def resource(kind: str) -> tuple[str, str, str]:
    """Return group, version and plural of a kind, as kopf wants them."""
    prefix, plural = KINDS[kind]
    _, *group, version = prefix.split("/")
    return group[0] if group else "", version, plural


def _handler(kind: str, seen: Seen) -> Callable[..., Any]:
    async def handler(event: Mapping[str, Any], **_: Any) -> None:
        raw = {**event["object"], "kind": kind}
        seen(raw, event["type"] == "DELETED")

    return handler
