from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.engines.lifecycle import (
    Dead,
    Event,
    Healthy,
    LeaveOrdered,
    Leaving,
    ProbeFailed,
    ProbeOk,
    ProcessExited,
    PublishFailed,
    RestartOrdered,
    Serving,
    Stale,
    Started,
    StartFailed,
    Starting,
    State,
    Suspect,
    VersionMoved,
    WeightsVerified,
    advance,
)

MAX_FAILURES = 3
PLAIN = (
    Started,
    ProbeOk,
    ProbeFailed,
    ProcessExited,
    StartFailed,
    PublishFailed,
    VersionMoved,
    LeaveOrdered,
)
GENERATIONS = st.integers(0, 3)
EVENTS = st.one_of(
    st.builds(lambda kind, generation: kind(generation), st.sampled_from(PLAIN), GENERATIONS),
    st.builds(RestartOrdered, GENERATIONS),
    st.builds(WeightsVerified, GENERATIONS, st.integers(0, 3)),
)


def after(state: State, *events: Event, current: int | None = 5) -> State:
    for event in events:
        state = advance(state, event, current, MAX_FAILURES)
    return state


def path(events: Sequence[Event], current: int) -> list[tuple[State, Event, State]]:
    state: State = Starting(0)
    steps = []
    for event in events:
        following = advance(state, event, current, MAX_FAILURES)
        steps.append((state, event, following))
        state = following
    return steps


@given(st.lists(EVENTS, max_size=40), st.integers(0, 3))
def test_only_verified_current_weights_make_an_engine_serve(events: list[Event], current: int) -> None:
    entries = [
        (before, event)
        for before, event, after in path(events, current)
        if isinstance(after, Serving) and not isinstance(before, Serving)
    ]
    assert all(isinstance(before, Stale) for before, _ in entries)
    assert all(isinstance(event, WeightsVerified) and event.version == current for _, event in entries)


@given(st.lists(EVENTS, max_size=40), st.integers(0, 3))
def test_a_dead_engine_leaves_only_by_an_ordered_restart(events: list[Event], current: int) -> None:
    exits = [
        (event, after)
        for before, event, after in path(events, current)
        if isinstance(before, Dead) and not isinstance(after, Dead)
    ]
    assert all(
        (isinstance(event, RestartOrdered) and isinstance(after, Starting))
        or (isinstance(event, LeaveOrdered) and isinstance(after, Leaving))
        for event, after in exits
    )


@given(st.lists(EVENTS, max_size=40), st.integers(0, 3))
def test_an_engine_that_leaves_does_nothing_else_any_more(events: list[Event], current: int) -> None:
    left = [(before, after) for before, _, after in path(events, current) if isinstance(before, Leaving)]
    assert all(before == after for before, after in left)


@given(st.lists(EVENTS, max_size=40), st.integers(0, 3))
def test_generations_never_go_back(events: list[Event], current: int) -> None:
    assert all(after.generation >= before.generation for before, _, after in path(events, current))


@given(st.lists(EVENTS, max_size=40), st.integers(0, 3), GENERATIONS)
def test_ordering_the_same_restart_twice_is_harmless(events: list[Event], current: int, generation: int) -> None:
    once = after(Starting(0), *events, RestartOrdered(generation), current=current)
    assert after(once, RestartOrdered(generation), current=current) == once


@given(st.lists(EVENTS, max_size=40), st.integers(0, 3))
def test_events_of_another_generation_change_nothing(events: list[Event], current: int) -> None:
    foreign = [
        (before, after)
        for before, event, after in path(events, current)
        if not isinstance(event, RestartOrdered) and event.generation != before.generation
    ]
    assert all(before == after for before, after in foreign)


@pytest.mark.parametrize("state", [Stale(0, 2), Healthy(0, 5), Suspect(0, 5, 1)])
def test_a_start_changes_only_an_engine_that_is_starting(state: State) -> None:
    assert after(Starting(0), Started(0)) == Stale(0)
    assert after(state, Started(0)) == state


def test_failed_probes_of_a_stale_engine_count_anew_after_an_answer() -> None:
    assert after(Stale(0), ProbeFailed(0), ProbeFailed(0), ProbeOk(0), ProbeFailed(0)) == Stale(0, 1)


def test_an_engine_with_older_weights_than_the_current_stays_stale() -> None:
    assert after(Starting(1), Started(1), WeightsVerified(1, 4)) == Stale(1)


def test_an_engine_is_stale_when_the_version_moves_without_it() -> None:
    assert after(Healthy(1, 4), VersionMoved(1)) == Stale(1)
    assert after(Healthy(1, 5), VersionMoved(1)) == Healthy(1, 5)


def test_three_failed_probes_in_a_row_kill() -> None:
    assert after(Healthy(0, 5), *[ProbeFailed(0)] * 3) == Dead(0, "Unresponsive")
    assert after(Healthy(0, 5), ProbeFailed(0), ProbeFailed(0), ProbeOk(0), ProbeFailed(0)) == Suspect(0, 5, 1)


def test_a_suspect_engine_that_answers_is_healthy() -> None:
    assert after(Healthy(0, 5), ProbeFailed(0), ProbeFailed(0), ProbeOk(0)) == Healthy(0, 5)


def test_a_stale_engine_that_does_not_answer_dies() -> None:
    assert after(Stale(0), *[ProbeFailed(0)] * 3) == Dead(0, "Unresponsive")


def test_the_cause_of_death_is_named() -> None:
    assert after(Healthy(0, 5), ProcessExited(0)) == Dead(0, "ProcessExited")
    assert after(Healthy(0, 5), PublishFailed(0)) == Dead(0, "PublishFailed")
    assert after(Starting(0), StartFailed(0)) == Dead(0, "StartFailed")
