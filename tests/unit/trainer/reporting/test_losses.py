"""What the world costs a run is counted, and an outage is told from a request that fails alone."""

import pytest

from rljob_trainer.reporting.losses import CREDIT, MOST_CREDITS, AwayError, Cause, Losses, Outage
from support.trainer.synthetic_run import Clock


def outage(clock: Clock, losses: Losses | None = None, **settings) -> Outage:
    return Outage("the judge", losses or Losses(), longest_s=600.0, clock=clock, **settings)


def fails(service: Outage, clock: Clock, failing, **how) -> float | None:
    """Let a request fail, and wait as long as it may."""
    pause_s = service.pause_s(failing, "connection refused", **how)
    clock.now += pause_s or 0.0
    return pause_s


def test_a_request_that_fails_while_others_succeed_is_given_up_after_its_tries():
    clock = Clock()
    service = outage(clock, tries=3)
    failing = service.trouble()
    assert fails(service, clock, failing) and fails(service, clock, failing)
    service.worked()
    assert fails(service, clock, failing) is None


def test_a_request_that_fails_once_more_when_an_outage_has_just_ended_is_not_given_up():
    clock = Clock()
    service = outage(clock, tries=3, has_worked=True)
    failing = service.trouble()
    for _ in range(10):
        fails(service, clock, failing, is_away=True)
    service.worked()
    assert fails(service, clock, failing, is_away=True) is not None
    service.worked()
    assert fails(service, clock, failing, is_away=True) is None


def test_a_service_that_has_never_worked_is_not_waited_for():
    clock = Clock()
    service = outage(clock, tries=2)
    failing = service.trouble()
    assert fails(service, clock, failing)
    assert fails(service, clock, failing) is None
    assert clock.now < 2.0


@pytest.mark.parametrize("how", ["worked", "worked in an earlier attempt", "cannot be reached"])
def test_a_service_that_is_away_is_waited_for_as_long_as_the_manifest_says(how):
    clock, losses, beats = Clock(), Losses(), []
    service = outage(clock, losses, has_worked=how == "worked in an earlier attempt", alive=lambda: beats.append(1))
    if how == "worked":
        service.worked()
        clock.now = 1000.0
    failing, began = service.trouble(), clock.now
    with pytest.raises(AwayError, match=r"the judge has not worked for 6\d\d s .*: connection refused"):
        while True:
            fails(service, clock, failing, is_away=how == "cannot be reached")
    assert 600.0 < clock.now - began < 660.0
    assert losses.waiting_for == "the judge: connection refused"
    assert len(beats) > 10, "the supervisor must not take the wait for a stall"


def test_an_outage_ends_with_the_first_success():
    clock, losses = Clock(), Losses(Clock())
    service = outage(clock, losses, has_worked=True)
    failing = service.trouble()
    while losses.waiting_for is None:
        fails(service, clock, failing)
    service.worked()
    assert losses.waiting_for is None


def test_pauses_grow_to_half_a_minute_and_differ():
    clock = Clock()
    service = outage(clock, tries=9)
    failing = service.trouble()
    pauses = [fails(service, clock, failing) for _ in range(8)]
    means = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert all(0.5 * mean <= pause <= 1.5 * mean for pause, mean in zip(pauses, means, strict=True))


def test_losses_are_taken_once_and_samples_and_files_are_told_apart():
    losses = Losses()
    losses.note(Cause.JUDGE, 2, ValueError("no number"))
    losses.note(Cause.STORAGE)
    losses.note(Cause.CLEANING)
    lost = losses.lost()
    assert (lost.lost_samples, lost.storage_errors) == (2, 2)
    assert lost.losses == {"Judge": 2, "Storage": 1, "Cleaning": 1}
    assert losses.lost().losses == {}
    assert str(losses.last) == "no number"


def test_the_time_of_overlapping_waits_counts_once():
    clock = Clock()
    losses = Losses(clock)
    losses.waits("a", "the judge")
    clock.now = 10.0
    losses.waits("b", "the volume")
    clock.now = 15.0
    losses.waits("a", None)
    assert (losses.waiting_for, losses.waited_s) == ("the volume", 15.0)
    losses.waits("b", None)
    clock.now = 100.0
    assert (losses.waiting_for, losses.waited_s) == (None, 15.0)


def test_the_last_request_of_many_is_given_up_without_others_beside_it():
    clock = Clock()
    service = outage(clock, tries=3)
    for _ in range(CREDIT):
        service.worked()
    clock.now += 1.0
    failing, another = service.trouble(), service.trouble()
    assert [fails(service, clock, failing) is None for _ in range(3)] == [False, False, True]
    assert [fails(service, clock, another) is None for _ in range(5)] == [False] * 5, "no credit is left"


def test_an_outage_after_very_many_successes_costs_few_requests():
    clock = Clock()
    service = outage(clock, tries=2)
    for _ in range(10_000):
        service.worked()
    clock.now += 1.0
    lost = 0
    for _ in range(100):
        failing = service.trouble()
        fails(service, clock, failing)
        lost += fails(service, clock, failing) is None
    assert lost == MOST_CREDITS


def test_a_service_that_cannot_be_reached_is_waited_for_by_all():
    clock = Clock()
    service = outage(clock, tries=1)
    for _ in range(1000):
        service.worked()
    clock.now += 1.0
    assert fails(service, clock, service.trouble(), is_away=True) is not None
