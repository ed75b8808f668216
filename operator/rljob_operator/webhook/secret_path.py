"""The path of the webhook: a secret that only the replicas and the API server know.

    Secret ─► server, ValidatingWebhookConfiguration

Any pod may reach the port, and a review shows quotas and nodes: a request with another path gets no answer. Tenants
read neither of the two objects. The path stays when the certificate is renewed.
"""

import base64
import binascii
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from rljob_operator.cluster.cluster import Cluster
from rljob_operator.webhook.certificate_renewal import JSON_PATCH, configuration_at, keep_looking, secret_at

log = logging.getLogger(__name__)

ENTRY = "path"
"""of the Secret"""
PATH = re.compile(r"/[a-z0-9]{40,63}")
"""an API server takes only names of DNS as the parts of a Service's path: no capitals, no underscores"""


class PathKeeper:
    """The path of one replica."""

    def __init__(
        self, cluster: Cluster, secret: tuple[str, str], configuration: str, use: Callable[[str], None]
    ) -> None:
        """`secret` is (namespace, name); `use` answers at a path from now on."""
        self._cluster = cluster
        self._secret = secret_at(secret)
        self._configuration = configuration_at(configuration)
        self._use = use

    async def keep(self) -> None:
        """Look after the path for ever."""
        await keep_looking(self.look, "keep-path")

    async def look(self) -> None:
        """Choose the path if there is none, serve it, and write it where the API server reads it; raise ClusterError.

        Replicas race for the Secret; who loses raises ConflictError, and reads what the winner wrote.
        """
        raw = await self._cluster.request("GET", self._secret)
        path = _path(raw.get("data") or {})
        if path is None:
            path = f"/{secrets.token_hex(24)}"
            raw["data"] = {ENTRY: base64.b64encode(path.encode()).decode()}
            await self._cluster.request("PUT", self._secret, body=raw)
            log.info("action=choose-path")
        self._use(path)
        found = await self._cluster.request("GET", self._configuration)
        changes: Any = [
            change
            for index, hook in enumerate(found.get("webhooks", ()))
            if (change := _change(f"/webhooks/{index}/clientConfig", hook["clientConfig"], path))
        ]
        if changes:
            await self._cluster.request("PATCH", self._configuration, (), changes, JSON_PATCH)
            log.info("action=tell-path configuration=%s", self._configuration.rpartition("/")[2])


def _path(data: dict[str, str]) -> str | None:
    try:
        path = base64.b64decode(data.get(ENTRY, "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return path if PATH.fullmatch(path) else None


def _change(place: str, config: dict[str, Any], path: str) -> dict[str, Any] | None:
    """Return the JSON patch that sends reviews to a path; None: they go there already."""
    if "service" in config:
        known = config["service"].get("path")
        return None if known == path else {"op": "add", "path": f"{place}/service/path", "value": path}
    url = urlsplit(config["url"])
    told = url._replace(path=path).geturl()
    return None if url.path == path else {"op": "add", "path": f"{place}/url", "value": told}
