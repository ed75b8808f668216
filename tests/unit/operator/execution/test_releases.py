"""Two releases of the chart that watch the same namespaces: a job belongs to one of them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.cluster.cluster import ClusterError
from rljob_operator.execution.releases import GONE_S, LOOK_S, OtherReleases
from rljob_operator.identity import Manifest
from support.operator.operator_world import NOW, Surroundings, raw_job

OTHER = "team/other-operator"


def lease(renewed: str = "2027-01-15T08:00:00.000000Z") -> Manifest:
    return {"spec": {"holderIdentity": "a", "renewTime": renewed}}


RENEWED = 1_800_000_000.0
"""[unix s]"""


class Leases:
    def __init__(self, found: Manifest | ClusterError | None) -> None:
        self.found, self.read = found, list[tuple[str, str]]()

    async def read_lease(self, namespace: str, name: str) -> Manifest | None:
        self.read.append((namespace, name))
        if isinstance(self.found, ClusterError):
            raise self.found
        return self.found


def looks(leases: Any, *at: float) -> list[bool]:
    """Return whether the other release is gone, at each of these times."""
    now = 0.0
    releases = OtherReleases(leases, lambda: now)
    found = []
    for moment in at:
        now = moment
        found.append(asyncio.run(releases.is_gone(OTHER)))
    return found


def test_a_release_is_gone_when_its_lease_was_not_renewed_for_15_minutes():
    assert looks(Leases(lease()), RENEWED, RENEWED + GONE_S - 1, RENEWED + GONE_S) == [False, False, True]


def test_a_release_that_renews_its_lease_is_alive_however_slow_its_clock_is():
    leases, now = Leases(lease()), RENEWED + GONE_S
    releases = OtherReleases(leases, lambda: now)  # type: ignore[arg-type]
    found = []
    for second in range(5):
        leases.found = lease(f"2027-01-15T08:00:0{second}.000000Z")
        found.append(asyncio.run(releases.is_gone(OTHER)))
        now += LOOK_S
    assert found == [False] * 5


def test_without_a_lease_the_time_counts_from_the_first_look():
    assert looks(Leases(None), 0.0, LOOK_S, GONE_S - 1, GONE_S) == [False, False, False, True]


def test_one_whose_lease_cannot_be_read_is_not_gone():
    assert looks(Leases(ClusterError("403", 403)), 0.0, 10 * GONE_S, 20 * GONE_S) == [False, False, False]


def test_a_lease_that_comes_back_counts_again():
    leases = Leases(None)
    now = 0.0
    releases = OtherReleases(leases, lambda: now)  # type: ignore[arg-type]
    assert not asyncio.run(releases.is_gone(OTHER))
    leases.found, now = lease(), RENEWED
    assert not asyncio.run(releases.is_gone(OTHER))


def test_a_lease_is_read_at_most_every_30_seconds():
    leases = Leases(lease())
    looks(leases, RENEWED, RENEWED + LOOK_S - 1, RENEWED + LOOK_S)
    assert leases.read == [("team", "other-operator")] * 2


def belongs_to(release: str | None, around: Surroundings) -> None:
    around.raw = {**around.raw, "status": {**around.status, "release": release}}


def test_the_first_status_names_the_release():
    around = Surroundings()
    around.step()
    assert around.status["release"] == "default/rljob-operator"


def test_a_refused_job_belongs_to_the_release_that_refused_it():
    around = Surroundings(raw_job(training={"steps": -1}))
    around.step()
    assert around.status["release"] == "default/rljob-operator"


@pytest.mark.parametrize("suspend", [True, False])
def test_a_job_of_another_release_is_left_alone(suspend: bool):
    around = Surroundings().to_running()
    belongs_to(OTHER, around)
    around.edit(suspend=suspend)
    todo = around.plan()
    assert todo.is_empty
    assert todo.follow is None
    assert todo.requeue_after_s is not None


def test_it_is_taken_over_where_it_stands_when_that_release_is_gone():
    around = Surroundings().to_running()
    belongs_to(OTHER, around)
    around.observed = replace(around.observed, is_other_release_gone=True, driver=None)
    around.step()
    around.ray_answers()
    around.runs()
    around.step()
    assert (around.status["release"], around.status["attempt"]) == ("default/rljob-operator", 1)
    assert "TakenOver" in {event.reason for event in around.events}
    assert around.submitted == ["sums-7f3a1-attempt-1"]
    assert around.now == NOW


def test_a_job_of_an_older_operator_gets_its_release_and_nothing_else():
    around = Surroundings().to_running()
    before = {name: value for name, value in around.status.items() if name != "release"}
    around.raw = {**around.raw, "status": before}
    todo = around.step()
    assert todo.delete == todo.apply == ()
    assert around.status == {**before, "release": "default/rljob-operator"}


def test_a_job_that_has_ended_is_not_written_for_its_release():
    around = Surroundings().to_running()
    around.ends(0)
    around.step()
    around.deletions_done()
    around.step()
    ended = {name: value for name, value in around.status.items() if name != "release"}
    around.raw = {**around.raw, "status": ended}
    assert around.plan().status is None
