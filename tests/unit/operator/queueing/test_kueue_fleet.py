"""200 jobs wait in Kueue for 64 GPUs. Kueue is a model (`kueue_fleet.py` states it); the plans are the operator's."""

import pytest

from support.operator.kueue_fleet import KueueFleet
from support.operator.queue_fleet import QUEUE, fleet

JOBS, GPUS, ROUNDS = 200, 64, 120


@pytest.fixture(scope="module")
def passed() -> KueueFleet:
    """The jobs, after they have lived; each round is checked."""
    queue = KueueFleet(fleet(JOBS, queue=QUEUE), GPUS, seed=3, rejected=0.1, evicted=0.1)
    for _ in range(ROUNDS):
        queue.live()
        holding = [each.name for each in queue.members if each.has_pods and not each.is_admitted]
        assert (holding, queue.used <= GPUS) == ([], True)
    return queue


def test_every_job_that_kueue_does_not_reject_ends_well(passed: KueueFleet) -> None:
    assert {each.phase for each in passed.members if not each.is_rejected} == {"Succeeded"}


def test_a_job_that_kueue_rejects_waits_and_holds_nothing(passed: KueueFleet) -> None:
    rejected = [each for each in passed.members if each.is_rejected]
    assert len(rejected) > 10
    assert {(each.phase, each.has_pods) for each in rejected} == {("Queued", False)}
    assert {each.around.condition("Ready")["message"].partition(" (")[0] for each in rejected} == {
        "its Workload is deactivated"
    }


def test_evicted_jobs_give_their_room_back_and_are_no_failures(passed: KueueFleet) -> None:
    evicted = [each for each in passed.members if each.evictions]
    assert len(evicted) > 10
    assert {(each.phase, each.around.status["restarts"]) for each in evicted} == {("Succeeded", 0)}
    assert {len(each.around.status["attempts"]) - each.evictions for each in evicted} == {1}
    assert passed.used == 0


def test_jobs_that_are_alike_start_in_the_order_of_their_age(passed: KueueFleet) -> None:
    places = {name: place for place, name in enumerate(passed.first)}
    alike: dict[tuple[int, int], list[int]] = {}
    for each in passed.members:
        if each.name in places:
            alike.setdefault((each.priority, each.gpus), []).append(places[each.name])
    assert len(alike) > 6
    assert all(mine == sorted(mine) for mine in alike.values())


def test_all_gpus_are_used(passed: KueueFleet) -> None:
    assert passed.most_used == GPUS
