"""An operator over an API server that only lists."""

from types import SimpleNamespace
from typing import Any

from rljob_api.status import ToolPodOwner
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import GoneError, Page
from rljob_operator.process import Operator
from rljob_operator.world.world import Defaults
from support.operator.operator_world import raw_job


class ClusterWithoutOthers:
    """An API server that serves no CRD of other projects, and in `missing` the kinds that it does not know besides."""

    def __init__(self, *missing: str) -> None:
        self.missing = {"Workload", "Sandbox", *missing}

    async def pages(self, kind: str, namespaces: Any) -> Any:
        if kind in self.missing:
            raise GoneError(f"GET {kind}: 404 the server could not find the requested resource", 404)
        yield Page((raw_job(),) if kind == "RLJob" else (), "5")


WITH_OTHERS = Defaults(has_kueue=True, tool_pod_owner=ToolPodOwner.SANDBOX)


def operator_of(cluster: Any, defaults: Defaults = WITH_OTHERS) -> Operator:
    settings: Any = SimpleNamespace(namespaces=(), defaults=defaults)
    unused: Any = None
    watches = WatchLiveness(lambda: 0.0)
    return Operator(settings, cluster, Cache(), WorkQueue(lambda: 0.0), watches, unused, unused, unused, unused)
