"""kopf's part: watches that report every change. Nothing is decided or written here, so kopf never writes into users'
objects: no annotations, no finalizers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import kopf

from rljob_operator.cluster import KINDS, LABELLED
from rljob_operator.identity import JOB_LABEL, Manifest

EventSink = Callable[[Manifest, bool], None]
"""takes an object, and whether it was deleted"""

SERVER_TIMEOUT_S = 300
CLIENT_TIMEOUT_S = 330
CONNECT_TIMEOUT_S = 10
CHUNK = 500
IDLE_S = 0.5
"""without an event for this time, kopf drops its worker for an object, and the object with it [s]"""


def registry(seen: EventSink, kubeconfig: str | None, kinds: Sequence[str]) -> kopf.OperatorRegistry:
    """Return the handlers, one for each kind."""
    handlers = kopf.OperatorRegistry()

    def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**given) if kubeconfig else kopf.login_with_service_account(**given)

    kopf.on.login(registry=handlers)(login)
    for kind in kinds:
        group, version, plural = resource(kind)
        kopf.on.event(group, version, plural, id=f"see-{kind}", registry=handlers)(_handler(kind, seen))
    return handlers


def watching() -> kopf.OperatorSettings:
    """Return the settings: watches with timeouts, for our own objects only."""
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
    for kind in LABELLED:
        settings.watching.label_selectors[resource(kind)] = JOB_LABEL
    return settings


class NoDifferences(kopf.DiffBaseStorage):
    """Stores nothing: kopf would copy every object of every event to find differences that we do not use."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("kopf writes nothing into objects")


class NoProgress(kopf.ProgressStorage):
    """Stores nothing: `on.event` handlers have no progress."""

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


def _handler(kind: str, seen: EventSink) -> Callable[..., Any]:
    async def handler(event: Mapping[str, Any], **_: Any) -> None:
        raw = {**event["object"], "kind": kind}
        seen(raw, event["type"] == "DELETED")

    return handler
