"""The queue: each key once, one at a time, back-off after failures. Time is a number that tests move."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cache.workqueue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock)


def test_a_key_is_in_it_once(queue):
    queue.add("ml/a")
    queue.add("ml/a")
    assert [queue._take(), queue._take()] == ["ml/a", None]


def test_a_key_in_work_is_not_given_to_another_worker(queue):
    queue.add("ml/a")
    queue._take()
    queue.add("ml/a")
    assert queue._take() is None
    queue.done("ml/a", None)
    assert queue._take() == "ml/a"


def test_a_key_waits_from_when_it_is_due_until_it_is_in_work(queue, clock):
    queue.add("a", 5.0)
    assert queue.waiting_s() == ()
    clock.now += 7.0
    assert queue.waiting_s() == (2.0,)
    assert queue._take() == "a"
    queue.add("a")
    assert queue.waiting_s() == ()


def test_the_earlier_time_wins(queue, clock):
    queue.add("ml/a", 10)
    queue.add("ml/a", 5)
    queue.add("ml/a", 20)
    clock.now = 5
    assert queue._take() == "ml/a"
    clock.now = 30
    queue.done("ml/a", None)
    assert queue._take() is None


def test_failures_wait_twice_as_long_each_time_and_success_forgets_them(queue, clock):
    waits = []
    for _ in range(3):
        queue.add("ml/a")
        clock.now += 100
        queue._take()
        waits.append(queue.failed("ml/a"))
    assert waits == [0.5, 1.0, 2.0]
    clock.now += 100
    queue._take()
    queue.done("ml/a", None)
    queue.add("ml/a")
    queue._take()
    assert queue.failed("ml/a") == 0.5


def test_an_event_does_not_shorten_a_back_off_that_it_came_before(queue, clock):
    queue.add("ml/a")
    queue._take()
    queue.add("ml/a")
    queue.failed("ml/a")
    assert queue._take() is None


def test_get_waits_for_what_is_added():
    async def scenario() -> str:
        queue = WorkQueue(asyncio.get_running_loop().time)
        asyncio.get_running_loop().call_later(0.01, queue.add, "ml/a")
        return await asyncio.wait_for(queue.get(), 5)

    assert asyncio.run(scenario()) == "ml/a"


def test_get_waits_for_what_is_due_later():
    async def scenario() -> str:
        queue = WorkQueue(asyncio.get_running_loop().time)
        queue.add("ml/a", 0.05)
        return await asyncio.wait_for(queue.get(), 5)

    assert asyncio.run(scenario()) == "ml/a"


@given(st.integers(1, 2000))
def test_a_back_off_is_never_longer_than_a_minute(failures):
    queue = WorkQueue(Clock())
    waits = [queue.failed("ml/a") for _ in range(failures)]
    assert waits == sorted(waits)
    assert waits[-1] == min(60.0, 0.5 * 2.0 ** min(failures - 1, 10))


def test_a_failed_key_is_tried_again_after_its_back_off(queue, clock):
    queue.add("ml/a")
    queue._take()
    wait_s = queue.failed("ml/a")
    clock.now += wait_s - 0.1
    assert queue._take() is None
    clock.now += 0.1
    assert queue._take() == "ml/a"


def test_a_key_that_is_done_is_due_again_when_its_work_says_so(queue, clock):
    queue.add("ml/a")
    queue._take()
    queue.done("ml/a", 30.0)
    clock.now = 29.9
    assert queue._take() is None
    clock.now = 30.0
    assert queue._take() == "ml/a"


@pytest.mark.parametrize("later", range(5))
def test_a_worker_that_is_cancelled_while_a_key_arrives_ends(queue, later):
    async def turns(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async def scenario() -> None:
        queue.add("ml/b", after_s=100.0)
        worker = asyncio.create_task(queue.get())
        await turns(3)
        queue.add("ml/a", after_s=10.0)
        await turns(later)
        worker.cancel()
        await asyncio.wait({worker})
        assert worker.cancelled()

    asyncio.run(scenario())


def test_events_do_not_retry_a_failing_key_before_its_back_off_is_over(queue, clock):
    looks = 0
    queue.add("ml/a")
    for _ in range(6000):
        if queue._take() is not None:
            looks += 1
            queue.failed("ml/a")
        clock.now += 0.1
        queue.add("ml/a")  # a report of its driver
    assert 15 <= looks <= 17


def test_a_key_that_fails_is_looked_at_soon_after_its_author_has_changed_it(queue, clock):
    for _ in range(10):
        queue.add("ml/a")
        clock.now += 60.0
        queue._take()
        queue.failed("ml/a")
    queue.retry("ml/a")
    assert queue._take() is None
    clock.now += 0.5
    assert queue._take() == "ml/a"


def test_an_author_who_changes_a_failing_key_all_the_time_has_it_tried_twice_a_second(queue, clock):
    looks = 0
    queue.add("ml/a")
    for _ in range(1000):
        if queue._take() is not None:
            looks += 1
            queue.failed("ml/a")
        clock.now += 0.01
        queue.retry("ml/a")
    assert looks <= 21
