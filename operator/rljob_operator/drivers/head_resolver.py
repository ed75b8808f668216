"""Finds the addresses of heads: a request for the Service of a job goes to the pod of its head.

A user who may edit Services in the namespace of a job can make its Service lead anywhere. The address of a pod is set
by a kubelet alone.
"""

import socket

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from rljob_operator.cache.cache import Cache
from rljob_operator.identity import job_of_service

OF_CLUSTER = ".svc"
"""the end of a Service's name in the cluster's DNS: `SERVICE.NAMESPACE.svc`"""


class HeadResolver(AbstractResolver):
    """Resolves the names of jobs' Services by the cache, and all others by DNS."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._dns = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the address of a host; raise OSError if it has none."""
        service, _, place = host.partition(".")
        namespace = place.removesuffix(OF_CLUSTER)
        job = job_of_service(service) if namespace != place else None
        if job is None:
            return await self._dns.resolve(host, port, family)
        name, children = job
        address = self._cache.head_ip(f"{namespace}/{name}", children)
        if address is None:
            raise OSError(None, f"the head behind {host} has no address now")
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=flags)]

    async def close(self) -> None:
        """Nothing is open."""
