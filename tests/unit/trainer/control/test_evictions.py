"""Which evictions end the run, and when waiting for a save is useless."""

import pytest

from rljob_api.control import EngineState, EngineStatus, Eviction, Progress, RunState, Status
from rljob_trainer.control.evictions import ends_the_run, is_stalled
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.status_store import StatusStore

HEALTHY, DEAD, LEAVING = EngineState.HEALTHY, EngineState.DEAD, EngineState.LEAVING


def engines(*places: tuple[str, EngineState]) -> tuple[EngineStatus, ...]:
    return tuple(
        EngineStatus(name=f"engine-{i}", state=state, since=1.0, node=node) for i, (node, state) in enumerate(places)
    )


@pytest.mark.parametrize(
    ("holds", "places", "ends"),
    [
        ("Learner", [], True),
        ("Learner", [("b", HEALTHY)], True),
        ("Engines", [("a", HEALTHY), ("b", HEALTHY)], False),
        ("Engines", [("a", HEALTHY), ("b", DEAD)], True),
        ("Engines", [("a", EngineState.SUSPECT)], True),
        ("Engines", [("a", LEAVING), ("b", HEALTHY)], False),
        ("Engines", [("b", HEALTHY)], False),
        ("Engines", [("a", DEAD)], False),
        ("Engines", [], False),
    ],
)
def test_a_run_ends_with_its_learner_or_its_last_engine(holds, places, ends):
    assert ends_the_run(Eviction(pod="p", node="a", holds=holds), engines(*places)) is ends


@pytest.mark.parametrize(("silent_s", "stalled"), [(60.0, False), (60.5, True)])
def test_a_driver_without_a_sign_of_life_does_not_save_any_more(silent_s, stalled):
    progress = Progress(step=1, last_step_seconds={"train": 1.0})
    status = Status(heartbeat=1000.0, progress=progress, engines=engines(("a", HEALTHY)), longest_phase_seconds=6.0)
    assert is_stalled(status, 1000.0 + silent_s) is stalled


def test_a_driver_that_has_not_begun_is_not_stalled():
    assert not is_stalled(Status(), 1e9)


def test_every_pod_of_a_run_that_drains_waits_for_its_save():
    store = StatusStore(Status(engines=engines(("a", HEALTHY), ("b", HEALTHY))))
    orders = OrderBook(store, lambda *order: None, print)
    of_engines = Eviction(pod="rollout", node="a", holds="Engines")
    assert orders.evict(of_engines).outcome == "Unneeded"
    assert (orders.requested, store.status.eviction) == (False, None)
    orders.drain()
    assert orders.evict(of_engines).outcome == "Draining"
    assert (store.status.state, store.status.eviction) == (RunState.DRAINING, None)


def test_the_longest_save_is_measured():
    now = [100.0]
    store = StatusStore(Status(), clock=lambda: now[0])
    for phase, took_s in [("train", 50.0), ("checkpoint", 1.0), ("train", 9.0), ("report", 1.0)]:
        store.begin(phase)
        now[0] += took_s
    store.saved(7.0)
    store.saved(4.0)
    assert (store.status.save_seconds, store.status.longest_phase_seconds) == (7.0, 50.0)
