"""Counts and times the requests to the API server, as `cluster.py` sends them; watches are not among them."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)
VERBS: Mapping[str, str] = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
APPLY = "application/apply-patch+yaml"


class Requests:
    """The requests of one connection."""

    def __init__(self) -> None:
        self._answered = Counter(
            "rljob_operator_api_requests",
            "Requests to the API server; code 0: no answer",
            ["verb", "resource", "code"],
            registry=None,
        )
        self._seconds = Histogram(
            "rljob_operator_api_request_seconds",
            "Time until the API server has answered",
            ["verb"],
            buckets=BUCKETS_S,
            registry=None,
        )

    def register(self, registry: CollectorRegistry) -> None:
        """Add the metrics to a registry."""
        registry.register(self._answered)
        registry.register(self._seconds)

    def answered(self, method: str, where: str, content_type: str, code: int, seconds: float) -> None:
        """Count a request to a path of the API server, for example `api/v1/pods`."""
        resource, is_named = target(where)
        verb = "apply" if content_type == APPLY else "list" if method == "GET" and not is_named else VERBS[method]
        self._answered.labels(verb, resource, str(code)).inc()
        self._seconds.labels(verb).observe(seconds)


def target(where: str) -> tuple[str, bool]:
    """Return the resource that a path is about, for example `rljobs/status`, and whether it names one object."""
    _, _, *rest = where.split("/") if where.startswith("api/") else where.split("/")[1:]
    if rest[0] == "namespaces":
        rest = rest[2:]
    resource, *name = rest
    return "/".join([resource, *name[1:]]), bool(name)
