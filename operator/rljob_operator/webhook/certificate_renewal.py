"""Keeps the certificate that all replicas share: in a Secret, renewed in time, and trusted by the API server.

    Secret ─► renewed ─► Secret, ValidatingWebhookConfiguration, TLS context

Replicas race for the Secret; who loses reads what the winner wrote. The bundle keeps the authority before, so a replica
that still has the older certificate is trusted, too.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.webhook import certificate
from rljob_operator.webhook.certificate import Pair

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""between two looks at the Secret [s]"""
RETRY_S = 2.0
END = "-----END CERTIFICATE-----\n"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Kept:
    """What the Secret holds."""

    server: Pair
    authority: Pair
    before: str = ""
    """the authority before; empty: none"""

    @property
    def bundle(self) -> str:
        """What the API server trusts."""
        return self.authority.certificate + self.before


def renewed(kept: Kept | None, hosts: Sequence[str], now: datetime) -> Kept:
    """Return what the Secret should hold; the same value if nothing is due."""
    if kept is None or certificate.is_due(kept.authority.certificate, now):
        signer = certificate.authority(now)
        return Kept(certificate.server(hosts, signer, now), signer, kept.authority.certificate if kept else "")
    fits = not certificate.is_due(kept.server.certificate, now)
    fits = fits and certificate.is_signed_by(kept.server.certificate, kept.authority.certificate)
    if fits and set(hosts) <= set(certificate.names_of(kept.server.certificate)):
        return kept
    return Kept(certificate.server(hosts, kept.authority, now), kept.authority, kept.before)


class Keeper:
    """The certificate of one replica."""

    def __init__(
        self,
        cluster: Cluster,
        secret: tuple[str, str],
        configuration: str,
        hosts: Sequence[str],
        use: Callable[[Pair], None],
        clock: Callable[[], datetime],
    ) -> None:
        """`secret` is (namespace, name); `use` serves a pair from now on."""
        self._cluster = cluster
        self._secret = secret_at(secret)
        self._configuration = configuration_at(configuration)
        self._hosts = hosts
        self._use = use
        self._clock = clock
        self._in_use: Pair | None = None

    async def keep(self) -> None:
        """Look after the certificate for ever."""
        await keep_looking(self.look, "keep-certificate")

    async def look(self) -> None:
        """Renew the certificate if that is due, and serve it; raise ClusterError."""
        raw = await self._cluster.request("GET", self._secret)
        kept = _kept(raw.get("data") or {})
        wanted = renewed(kept, self._hosts, self._clock())
        if wanted != kept:
            raw["data"] = encoded(wanted)
            await self._cluster.request("PUT", self._secret, body=raw)
            log.info("action=renew-certificate expires=%.0f", certificate.expires(wanted.server.certificate))
        await self._trust(wanted.bundle)
        if wanted.server != self._in_use:
            self._use(wanted.server)
            self._in_use = wanted.server

    async def _trust(self, bundle: str) -> None:
        """Have the API server trust these authorities."""
        found = await self._cluster.request("GET", self._configuration)
        encoded = base64.b64encode(bundle.encode()).decode()
        changes = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
            for index, hook in enumerate(found.get("webhooks", ()))
            if hook["clientConfig"].get("caBundle") != encoded
        ]
        if changes:
            body: Any = changes
            await self._cluster.request("PATCH", self._configuration, (), body, JSON_PATCH)
            log.info("action=trust configuration=%s", self._configuration.rpartition("/")[2])


def secret_at(secret: tuple[str, str]) -> str:
    """Return the path of a Secret, (namespace, name), at the API server."""
    return "api/v1/namespaces/{}/secrets/{}".format(*secret)


def configuration_at(name: str) -> str:
    """Return the path of a webhook configuration at the API server."""
    return f"apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}"


async def keep_looking(look: Callable[[], Awaitable[None]], action: str) -> None:
    """Look for ever: at once where another replica was first, soon where the API server fails."""
    while True:
        try:
            await look()
            await asyncio.sleep(LOOK_S)
        except ConflictError:
            continue
        except ClusterError as error:
            log.warning("action=%s outcome=failed: %s", action, error)
            await asyncio.sleep(RETRY_S)


def _kept(data: dict[str, str]) -> Kept | None:
    text = {name: base64.b64decode(value).decode() for name, value in data.items()}
    if not {"tls.crt", "tls.key", "ca.crt", "ca.key"} <= text.keys():
        return None
    newest, end, before = text["ca.crt"].partition(END)
    return Kept(Pair(text["tls.crt"], text["tls.key"]), Pair(newest + end, text["ca.key"]), before)


def encoded(kept: Kept) -> dict[str, str]:
    """Return the data of the Secret."""
    text = {
        "tls.crt": kept.server.certificate,
        "tls.key": kept.server.key,
        "ca.crt": kept.bundle,
        "ca.key": kept.authority.key,
    }
    return {name: base64.b64encode(value.encode()).decode() for name, value in text.items()}
