"""Who may take the Lease. Against a real API server: tests/integration/operator."""

from queue import SimpleQueue
from typing import cast

import pytest

from rljob_operator.cluster import Cluster
from rljob_operator.leader import LEASE_S, LOST, Election, Observed, may_take, taken

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
    assert codes.get(timeout=10) == LOST


def test_taking_over_counts():
    assert taken(HELD, "ns", "lease", "me", 0.0)["spec"]["leaseTransitions"] == 1
    assert taken(HELD, "ns", "lease", "me", 0.0)["metadata"] == HELD["metadata"]
