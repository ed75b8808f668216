"""Events of pods are read on demand, rarely, and never at the cost of a reconcile."""

import asyncio
from typing import Any

import pytest

from rljob_operator.cluster.cluster import ClusterError
from rljob_operator.watches.pod_events import AGAIN_S, PodEvents
from rljob_operator.world.pod_stage import PodEvent, PodStage, Stage
from rljob_operator.world.world import Pod

STUCK = (Pod("a", "c", False, False, False, PodStage(Stage.CREATING, 0.0)),)


class Events:
    """What `Cluster` has of events."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: ClusterError | None = None
        self.odd: list[Any] = []
        self.now = 100.0

    async def pod_events(self, namespace: str, pod: str) -> list[dict[str, Any]]:
        self.asked.append(f"{namespace}/{pod}")
        if self.error:
            raise self.error
        return [
            *self.odd,
            {"metadata": {}, "reason": "FailedMount", "note": "no secret", "eventTime": "1970-01-01T00:00:09Z"},
        ]


@pytest.fixture
def cluster() -> Events:
    return Events()


@pytest.fixture
def events(cluster: Events) -> PodEvents:
    return PodEvents(cluster, lambda: cluster.now)


def read(events: PodEvents, pods: tuple[Pod, ...] = STUCK) -> Any:
    return asyncio.run(events.of("ml/sums", "ml", pods))


def test_a_pod_that_is_stuck_is_asked_once_in_a_while(cluster, events):
    assert read(events) == read(events) == {"a": (PodEvent("FailedMount", "no secret", 9.0),)}
    assert cluster.asked == ["ml/a"]
    cluster.now += AGAIN_S
    read(events)
    assert cluster.asked == ["ml/a", "ml/a"]


def test_pods_that_explain_themselves_are_not_asked(cluster, events):
    assert read(events, (Pod("a", "c", False, False, False, PodStage(Stage.SCHEDULING, 0.0, "0/3")),)) == {}
    assert cluster.asked == []


def test_an_operator_without_the_right_explains_less(cluster, events):
    cluster.error = ClusterError("GET events: 403", 403)
    assert read(events) == {"a": ()}


def test_an_event_that_cannot_be_read_hides_no_other(cluster, events):
    cluster.odd = [{}, {"metadata": {}, "eventTime": "soon"}, 5]
    assert read(events) == {"a": (PodEvent("FailedMount", "no secret", 9.0),)}
