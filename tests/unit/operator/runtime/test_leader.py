"""Who may take the Lease. Against a real API server: tests/integration/operator."""

import asyncio
import copy
from queue import SimpleQueue
from typing import cast

import pytest

from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.identity import Manifest
from rljob_operator.runtime.leader import LEASE_S, LOST, RENEW_DEADLINE_S, Election, Observed, may_take, taken

NOBODY = cast(Cluster, None)
"""no request is made"""

HELD = {"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": LEASE_S}}


@pytest.mark.parametrize(
    ("lease", "age_s", "expected"),
    [
        (None, 0, True),
        (HELD, 0, False),
        (HELD, LEASE_S, False),
        (HELD, LEASE_S + 1, True),
        ({**HELD, "spec": {**HELD["spec"], "holderIdentity": "me"}}, 0, True),
        ({**HELD, "spec": {**HELD["spec"], "holderIdentity": ""}}, 0, True),
    ],
)
def test_only_a_lease_that_nobody_renews_is_taken(lease, age_s, expected):
    assert may_take(lease, Observed("7", 100.0), "me", 100.0 + age_s) is expected


def test_renewing_keeps_the_time_of_acquisition():
    first = taken(None, "ns", "lease", "me", 0.0)
    again = taken(first, "ns", "lease", "me", 60.0)
    assert again["spec"]["acquireTime"] == first["spec"]["acquireTime"]
    assert again["spec"]["renewTime"] > first["spec"]["renewTime"]
    assert again["spec"]["leaseTransitions"] == 0


def test_a_process_whose_lease_is_not_renewed_is_ended_even_if_its_loop_hangs():
    codes: SimpleQueue[int] = SimpleQueue()
    Election(NOBODY, "ns", "lease", "me").guard(die=codes.put)  # never renewed
    assert codes.get() == LOST


def test_taking_over_counts():
    assert taken(HELD, "ns", "lease", "me", 0.0)["spec"]["leaseTransitions"] == 1
    assert taken(HELD, "ns", "lease", "me", 0.0)["metadata"] == HELD["metadata"]


class Leases:
    """The one Lease, with a version that every write moves."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.is_down = False
        self.on_its_way: Manifest | None = None
        """a write that the server gets before the next one"""

    async def read_lease(self, namespace: str, name: str) -> Manifest | None:
        if self.is_down:
            raise ClusterError("no answer", 0)
        return copy.deepcopy(self.lease)

    async def write_lease(self, lease: Manifest) -> Manifest:
        first, self.on_its_way = self.on_its_way, None
        if first is not None:
            await self.write_lease(first)
        if self.lease and self.lease["metadata"]["resourceVersion"] != lease["metadata"].get("resourceVersion"):
            raise ConflictError("the object has been modified", 409)
        version = int(lease["metadata"].get("resourceVersion", "0")) + 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(version)}}
        return self.lease


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Replicas:
    """Two replicas that want the same Lease."""

    def __init__(self) -> None:
        self.leases, self.clock = Leases(), Clock()
        self.first, self.second = self._replica("first"), self._replica("second")

    def _replica(self, identity: str) -> Election:
        return Election(cast(Cluster, self.leases), "ns", "lease", identity, self.clock)

    def tries(self, replica: Election, after_s: float = 0.0) -> bool:
        self.clock.now += after_s
        return asyncio.run(replica.take_or_renew())

    @property
    def holder(self) -> str:
        assert self.leases.lease is not None
        return str(self.leases.lease["spec"]["holderIdentity"])


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


def test_a_standby_never_takes_a_lease_that_is_renewed(replicas: Replicas):
    replicas.tries(replicas.first)
    taken_over = [(replicas.tries(replicas.second, 5), replicas.tries(replicas.first, 5)) for _ in range(10)]
    assert taken_over == [(False, True)] * 10
    assert replicas.holder == "first"


def test_a_standby_takes_a_lease_whose_version_has_stood_still(replicas: Replicas):
    replicas.tries(replicas.first)
    replicas.tries(replicas.second, 100)
    assert not replicas.tries(replicas.second, LEASE_S), "it has seen this version for 15 s, and not longer"
    assert replicas.tries(replicas.second, 1)
    assert replicas.holder == "second"
    assert not replicas.tries(replicas.first, 1), "the first has lost it"


def test_a_released_lease_is_taken_at_once(replicas: Replicas):
    replicas.tries(replicas.first)
    asyncio.run(replicas.first.release())
    assert replicas.tries(replicas.second)


def test_a_renewal_that_is_still_on_its_way_does_not_keep_the_lease(replicas: Replicas):
    replicas.tries(replicas.first)
    replicas.leases.on_its_way = copy.deepcopy(replicas.leases.lease)
    asyncio.run(replicas.first.release())
    assert replicas.holder == ""


def test_a_lease_that_cannot_be_released_is_no_failure_of_the_process(replicas: Replicas, caplog):
    replicas.tries(replicas.first)
    replicas.leases.is_down = True
    asyncio.run(replicas.first.release())
    assert "action=release failed, others can take the Lease after 15 s: no answer" in caplog.text
    assert replicas.holder == "first"


def test_a_replica_does_not_release_the_lease_of_another(replicas: Replicas):
    replicas.tries(replicas.first)
    asyncio.run(replicas.second.release())
    assert replicas.holder == "first"


def test_an_api_server_that_does_not_answer_renews_nothing(replicas: Replicas):
    replicas.tries(replicas.first)
    replicas.leases.is_down = True
    assert not replicas.tries(replicas.first, RENEW_DEADLINE_S)
    asyncio.run(replicas.first.hold())  # returns: the Lease is lost
