"""The operator's time is the API server's."""

from email.utils import formatdate

import pytest

from rljob_operator.cluster.server_clock import ServerClock

NOW = 1_800_000_000.0


class Node:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("ahead_s", [-86_400, -600, -4, 4, 600, 86_400])
def test_the_time_is_that_of_the_api_server(ahead_s: int):
    clock = ServerClock(Node())
    clock.heard(formatdate(NOW + ahead_s, usegmt=True))
    assert clock() == pytest.approx(NOW + ahead_s, abs=1)


@pytest.mark.parametrize("ahead_s", [-3, -1, 0, 1, 3])
def test_what_an_answer_can_take_is_no_difference(ahead_s: int):
    clock = ServerClock(Node())
    clock.heard(formatdate(NOW + ahead_s, usegmt=True))
    assert clock() == NOW


def test_the_time_does_not_jump_with_each_answer():
    node = Node()
    clock = ServerClock(node)
    clock.heard(formatdate(NOW + 600, usegmt=True))
    before = clock()
    for late_s in (1, 2, 0, 3):
        clock.heard(formatdate(NOW + 600 - late_s, usegmt=True))
        assert clock() == before
    clock.heard(formatdate(NOW, usegmt=True))
    assert clock() == NOW, "somebody has set the node's clock"


@pytest.mark.parametrize(
    "date", [None, "", "now", "Fri, 99 Nov 2026 00:00:00 GMT", "Fri, 27 Nov 99999999999 00:00:00 GMT"]
)
def test_an_answer_without_a_date_that_can_be_read_changes_nothing(date: str | None):
    clock = ServerClock(Node())
    clock.heard(date)
    assert clock() == NOW
