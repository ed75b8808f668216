"""A running job is scaled: the orders to its driver, and the pods that come and go."""

import pytest

from rljob_api.control import EngineState, EngineStatus, RunState, Scale
from rljob_operator.children.rollout_pods import is_settled
from rljob_operator.identity import Manifest
from rljob_operator.world.world import DriverState, job_of
from support.operator.operator_world import Surroundings, address, raw_job, running

ENGINE = EngineStatus(name="engine-2", state=EngineState.STARTING, since=1.0)


def group(around: Surroundings) -> Manifest:
    """Return the worker group of the engines."""
    (cluster,) = around.observed.rayclusters()
    return next(group for group in cluster["spec"]["workerGroupSpecs"] if group["groupName"] == "rollout")


def settle(around: Surroundings) -> None:
    """Everybody does what is due, until nothing is."""
    for _ in range(4):
        around.step()
        around.pods_ready()
        around.driver_scales()
    around.step()
    assert around.plan().is_empty


def test_more_engines_are_ordered_and_their_pods_come():
    around = Surroundings().to_running()
    around.scale(4)
    todo = around.step()
    assert todo.orders.scale == Scale(generation=2, engines=4)
    assert (group(around)["replicas"], group(around)["maxReplicas"]) == (2, 2)
    settle(around)
    assert around.status["engines"]["ready"] == around.status["engines"]["desired"] == 4
    assert len(around.status["attempts"]) == 1, "it runs on"


def test_pods_go_when_the_driver_has_let_go_of_them():
    around = Surroundings(raw_job(rollout={"engines": 6})).to_running()
    around.runs(running(*[EngineState.HEALTHY] * 6))
    around.scale(2)
    assert around.step().orders.scale == Scale(generation=2, engines=2)
    assert group(around)["replicas"] == 3, "engines still work on them"
    around.step()
    assert group(around)["replicas"] == 3
    status = running(*[EngineState.HEALTHY] * 2, scale=Scale(generation=2, engines=2))
    moved = tuple(engine.model_copy(update={"node": address(1)}) for engine in status.engines)
    around.runs(status.model_copy(update={"engines": moved}))
    around.step()
    assert group(around)["replicas"] == 1
    assert group(around)["scaleStrategy"] == {"workersToDelete": ["sums-7f3a1-1-rollout-0", "sums-7f3a1-1-rollout-2"]}
    settle(around)
    assert group(around)["scaleStrategy"] == {"workersToDelete": []}
    assert [pod.name for pod in around.observed.pods if pod.group == "rollout"] == ["sums-7f3a1-1-rollout-1"]
    assert around.torn == []


def test_an_engine_that_still_answers_its_last_requests_keeps_its_pod():
    around = Surroundings(raw_job(rollout={"engines": 4})).to_running()
    around.runs(running(*[EngineState.HEALTHY] * 4))
    around.scale(2)
    around.step()
    states = [EngineState.HEALTHY] * 2 + [EngineState.LEAVING] * 2
    around.runs(running(*states, scale=Scale(generation=2, engines=2)))
    around.step()
    assert group(around)["replicas"] == 2


def test_a_farewell_goes_on_when_the_driver_is_out_of_sight():
    around = Surroundings(raw_job(rollout={"engines": 4})).to_running()
    around.scale(2)
    around.step()
    around.runs(running(scale=Scale(generation=2, engines=2)))
    around.step()
    named = group(around)["scaleStrategy"]["workersToDelete"]
    around.driver(state=DriverState.UNKNOWN, status=None)
    around.step()
    assert named == group(around)["scaleStrategy"]["workersToDelete"] == ["sums-7f3a1-1-rollout-1"]


def test_pods_that_never_came_are_the_first_to_go():
    around = Surroundings().to_running()
    around.scale(4)
    around.step()
    around.pods_ready(2)
    around.scale(2)
    around.step()
    settle(around)
    assert [pod.name for pod in around.observed.pods if pod.group == "rollout"] == ["sums-7f3a1-1-rollout-0"]


def test_before_a_driver_runs_the_pod_that_is_not_ready_goes():
    around = Surroundings(raw_job(rollout={"engines": 4}))
    around.step()
    around.pods_ready(2)
    around.scale(2)
    around.step()
    assert group(around)["scaleStrategy"] == {"workersToDelete": ["sums-7f3a1-1-rollout-1"]}


def test_a_driver_that_starts_gets_no_order_and_takes_the_number_from_its_command_line():
    around = Surroundings()
    around.step()
    around.scale(4)
    around.step()
    around.pods_ready()
    around.step()
    around.ray_answers()
    assert "--engines 4" in (around.step().orders.submit or "")
    around.runs(running(*[EngineState.STARTING] * 4, state=RunState.STARTING, scale=None))
    assert around.step().orders.scale is None


def test_a_driver_whose_engines_cannot_scale_gets_no_order():
    around = Surroundings().to_running()
    around.runs(running(scale=None))
    around.scale(4)
    assert around.step().orders.scale is None


def test_pods_of_another_size_wait_for_another_cluster():
    around = Surroundings().to_running()
    around.scale(3)
    todo = around.step()
    assert (todo.orders.scale, todo.apply) == (None, ())


def test_an_engine_that_comes_is_no_failure():
    around = Surroundings().to_running()
    around.scale(4)
    around.step()
    status = running(scale=Scale(generation=2, engines=4))
    around.runs(status.model_copy(update={"engines": (*status.engines, ENGINE)}))
    around.step()
    ready = around.condition("EnginesReady")
    assert (ready["reason"], ready["message"]) == ("Scaling", "2 of 3 engines are healthy; engine-2 waits for room")
    assert around.condition("Degraded")["status"] == "False"
    assert around.status["phase"] == "Training"
    assert [event.note for event in around.events if event.reason == "Scaled"] == ["engines: 2 -> 4"]


def test_an_engine_that_goes_does_not_count():
    around = Surroundings().to_running()
    around.runs(running(EngineState.HEALTHY, EngineState.LEAVING))
    around.step()
    assert around.condition("EnginesReady")["status"] == "True"


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        pytest.param({}, True, id="all there"),
        pytest.param({"node": None}, False, id="one waits for room"),
        pytest.param({"state": EngineState.LEAVING}, False, id="one leaves"),
        pytest.param({"state": EngineState.DEAD}, True, id="one is down, on its pod"),
    ],
)
def test_pods_go_when_it_is_known_where_all_engines_are(changes, settled):
    spec = job_of(raw_job()).spec
    first, second = running().engines
    assert spec is not None
    assert is_settled(running(engines=(first, second.model_copy(update=changes))), spec) is settled


def test_the_selector_finds_the_pods_of_the_engines():
    around = Surroundings().to_running()
    assert around.status["engines"]["selector"] == "rljob.dev/job=sums,ray.io/group in (rollout,rollout-rest)"


@pytest.mark.parametrize(
    ("restarts", "state", "reason"),
    [
        (0, EngineState.STARTING, "Scaling"),
        (0, EngineState.STALE, "Scaling"),
        (1, EngineState.STARTING, "EngineDown"),
        (1, EngineState.STALE, "EngineDown"),
        (0, EngineState.SUSPECT, "EngineDown"),
        (0, EngineState.DEAD, "EngineDown"),
    ],
)
def test_only_an_engine_that_never_served_is_called_starting(restarts: int, state: EngineState, reason: str):
    around = Surroundings().to_running()
    first, second = running().engines
    around.runs(running(engines=(first, second.model_copy(update={"restarts": restarts, "state": state}))))
    around.step()
    assert around.condition("EnginesReady")["reason"] == reason
    assert around.condition("Degraded")["status"] == ("True" if reason == "EngineDown" else "False")


def test_an_engine_with_a_node_starts():
    around = Surroundings().to_running()
    around.runs(running(EngineState.HEALTHY, EngineState.STARTING))
    around.step()
    assert around.condition("EnginesReady")["message"] == "1 of 2 engines are healthy; engine-1 starts"
