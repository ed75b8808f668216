"""What the operator does with the events of its watches, and what kopf does not do with them."""

import asyncio
from types import SimpleNamespace
from typing import cast

from rljob_operator.cache import Cache
from rljob_operator.handlers import resource, watching
from rljob_operator.process import Operator
from rljob_operator.watch_liveness import WatchLiveness
from rljob_operator.workqueue import WorkQueue
from support.operator.operator_world import raw_job


def operator() -> Operator:
    parts = SimpleNamespace(cache=Cache(), queue=WorkQueue(lambda: 0.0), watches=WatchLiveness(lambda: 0.0))
    return cast(Operator, parts)


def test_a_change_is_looked_at_and_its_echo_is_not():
    parts = operator()
    Operator.seen(parts, raw_job(), is_gone=False)
    assert asyncio.run(parts.queue.get()) == "ml/sums"
    parts.queue.done("ml/sums", None)
    Operator.seen(parts, raw_job(), is_gone=False)
    assert parts.queue.waiting_s() == ()


def test_what_is_gone_is_looked_at():
    parts = operator()
    Operator.seen(parts, raw_job(), is_gone=True)
    assert len(parts.queue.waiting_s()) == 1


def test_rayclusters_of_others_are_not_kept():
    parts = operator()
    metadata = {"name": "mine", "namespace": "ml", "uid": "1", "resourceVersion": "1"}
    Operator.seen(parts, {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata}, is_gone=False)
    assert parts.cache.jobs() == ()
    assert parts.queue.waiting_s() == ()


def test_rayclusters_are_watched_without_a_label():
    """One whose label is removed would look as if it were gone."""
    assert resource("RayCluster") not in watching().watching.label_selectors
    assert watching().watching.label_selectors[resource("Pod")] == "rljob.dev/job"


def test_kopf_copies_no_object():
    settings = watching()
    body = {"spec": {"large": ["x"]}}
    assert settings.persistence.diffbase_storage.build(body=body) == {}
    assert settings.persistence.diffbase_storage.fetch(body=body) is None
    assert settings.persistence.progress_storage.clear(essence=body) is body
