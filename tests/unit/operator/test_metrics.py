"""What the operator's metrics count, read as Prometheus reads them."""

from itertools import count
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rljob_api.control import EngineState
from rljob_api.recovery import RestartEngine
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.requests import APPLY, Requests
from rljob_operator.drivers.sender import Submit
from rljob_operator.metrics import Metrics, exit_name
from support.operator.operator_world import Surroundings, raw_job


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """The metrics, and the parts that they are read from."""

    def __init__(self) -> None:
        self.clock, self.cache, self.requests = Clock(), Cache(), Requests()
        self.queue, self.watches = WorkQueue(self.clock), WatchLiveness(self.clock)
        self.metrics = Metrics(self.cache, self.queue, self.watches, self.requests, "default/rljob-operator")

    def samples(self) -> dict[str, float]:
        """Return the values by name and labels, for example `rljob_operator_jobs{phase=New}`."""
        return {
            sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.metrics.text().decode())
            for sample in family.samples
        }


@pytest.fixture
def shown() -> Shown:
    return Shown()


VERSIONS = count(1)
"""the cache drops what is no newer than what it has"""


def put(shown: Shown, job: Surroundings | None = None, **status: Any) -> None:
    raw = job.raw if job else {**raw_job(), "status": status}
    shown.cache.put({**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(VERSIONS))}})


def test_jobs_of_another_controller_are_not_counted(shown):
    put(shown, Surroundings(raw_job(managedBy="kueue.x-k8s.io/multikueue")))
    assert shown.samples()["rljob_operator_jobs{phase=New}"] == 0


def test_a_job_without_a_status_is_new(shown):
    put(shown, Surroundings())
    assert shown.samples()["rljob_operator_jobs{phase=New}"] == 1


def test_jobs_of_another_release_are_not_counted(shown):
    put(shown, phase="Training", release="team/other")
    assert shown.samples()["rljob_operator_jobs{phase=Training}"] == 0


def carried_out(shown: Shown, job: Surroundings) -> None:
    """Plan and act as the reconciler does, and give the status to the metrics."""
    old, todo = job.status, job.step()
    if todo.status is not None:
        shown.metrics.count(old, todo.status)


def test_jobs_are_counted_by_phase_and_phases_without_any_are_0(shown):
    put(shown, phase="Training")
    found = shown.samples()
    assert found["rljob_operator_jobs{phase=Training}"] == 1
    assert found["rljob_operator_jobs{phase=Failed}"] == 0
    assert found["rljob_operator_job_phase{namespace=ml}{phase=Training}{rljob=sums}"] == 1


def test_a_training_job_shows_its_gpus_attempt_and_checkpoint(shown):
    saved = {"step": 2, "path": "p", "verified": True, "time": "2026-11-21T00:00:00Z"}
    put(shown, phase="Training", gpus=4, attempt=2, lastCheckpoint=saved)
    found = shown.samples()
    assert found["rljob_operator_job_gpus{namespace=ml}{rljob=sums}"] == 4
    assert found["rljob_operator_job_attempt{namespace=ml}{rljob=sums}"] == 2
    assert found["rljob_operator_job_last_checkpoint_timestamp_seconds{namespace=ml}{rljob=sums}"] == 1795219200


def test_a_job_that_has_ended_holds_no_gpus_and_says_when_it_ended(shown):
    put(shown, phase="Failed", gpus=4, completionTime="2026-11-21T00:00:00Z")
    found = shown.samples()
    assert not [name for name in found if name.startswith(("rljob_operator_job_gpus", "rljob_operator_job_last"))]
    name = "rljob_operator_job_completion_timestamp_seconds{namespace=ml}{phase=Failed}{rljob=sums}"
    assert found[name] == 1795219200


def test_a_job_whose_driver_fails_and_then_succeeds_is_counted_once_each(shown):
    job = Surroundings()
    carried_out(shown, job)
    job.now += 40
    job.pods_ready()
    carried_out(shown, job)
    job.ray_answers()
    carried_out(shown, job)
    job.runs()
    carried_out(shown, job)
    job.ends(4)
    carried_out(shown, job)
    carried_out(shown, job)
    assert shown.samples()["rljob_operator_driver_exits_total{reason=OutOfMemory}"] == 1
    assert shown.samples()["rljob_operator_driver_start_seconds_sum"] == 40
    job.now += 60
    job.ray_answers()
    carried_out(shown, job)
    job.runs()
    carried_out(shown, job)
    job.ends(0)
    carried_out(shown, job)
    carried_out(shown, job)
    found = shown.samples()
    assert found["rljob_operator_driver_exits_total{reason=Ok}"] == 1
    assert found["rljob_operator_driver_exits_total{reason=OutOfMemory}"] == 1
    assert found["rljob_operator_driver_start_seconds_count"] == 2
    assert found["rljob_operator_jobs_finished_total{phase=Succeeded}"] == 1
    assert found["rljob_operator_failures_total{code=Unknown}"] == 1, "what succeeded has not failed"


@pytest.mark.parametrize(
    ("said", "code"),
    [("action=diagnose failure=DiskFull seen=engine-0.log: No space left", "DiskFull"), ("no idea", "Unknown")],
)
def test_a_failed_job_shows_its_failure_and_one_that_trains_again_shows_none(said, code, shown):
    job = Surroundings(raw_job(recovery={"driverRestarts": 1})).to_running()
    job.driver(message=said)
    job.ends(1)
    carried_out(shown, job)
    put(shown, job)
    series = f"rljob_operator_job_failure{{code={code}}}{{namespace=ml}}{{rljob=sums}}"
    assert shown.samples()[series] == 1
    assert shown.samples()[f"rljob_operator_failures_total{{code={code}}}"] == 1
    job.now += 60
    job.ray_answers()
    carried_out(shown, job)
    job.runs()
    carried_out(shown, job)
    put(shown, job)
    assert job.status["phase"] == "Training"
    assert series not in shown.samples()


@pytest.mark.parametrize(
    ("code", "name"), [(0, "Ok"), (4, "OutOfMemory"), (-9, "Signal"), (99, "Unknown"), (None, "Unknown")]
)
def test_the_label_of_an_exit_code_is_one_of_few(code, name, shown):
    assert exit_name(code) == name
    assert shown.samples()[f"rljob_operator_driver_exits_total{{reason={name}}}"] == 0


def test_the_queue_shows_what_is_due_and_for_how_long_but_not_what_is_planned(shown):
    shown.queue.add("ml/a")
    shown.queue.add("ml/later", after_s=30)
    shown.clock.now = 5
    found = shown.samples()
    assert (found["rljob_operator_queue_depth"], found["rljob_operator_queue_oldest_seconds"]) == (1, 5)
    assert shown.queue._take() == "ml/a"
    assert shown.samples()["rljob_operator_queue_depth"] == 0


def test_a_job_whose_looks_all_fail_is_counted_after_ten_minutes_until_one_succeeds(shown):
    series = "rljob_operator_failing_jobs"
    for name in ("ml/a", "ml/b"):
        shown.queue.failed(name)
    shown.clock.now += 599
    assert shown.samples()[series] == 0
    shown.clock.now += 1
    shown.queue.failed("ml/a")
    assert shown.samples()[series] == 2
    shown.queue.retry("ml/a")
    assert shown.samples()[series] == 2, "an edit is no success"
    shown.queue.done("ml/b", None)
    assert shown.samples()[series] == 1


@pytest.mark.parametrize(
    ("method", "where", "content_type", "verb", "resource"),
    [
        ("GET", "api/v1/pods", "", "list", "pods"),
        ("GET", "api/v1/namespaces/ml/secrets/sums", "", "get", "secrets"),
        ("PATCH", "apis/rljob.dev/v1alpha1/namespaces/ml/rljobs/sums/status", APPLY, "apply", "rljobs/status"),
        ("PATCH", "apis/events.k8s.io/v1/namespaces/ml/events/x", "merge", "patch", "events"),
        ("POST", "apis/coordination.k8s.io/v1/namespaces/ml/leases", "", "create", "leases"),
    ],
)
def test_requests_are_counted_by_what_they_do_to_what(shown, method, where, content_type, verb, resource):
    shown.requests.answered(method, where, content_type, 200, 0.3)
    found = shown.samples()
    assert found[f"rljob_operator_api_requests_total{{code=200}}{{resource={resource}}}{{verb={verb}}}"] == 1
    assert found[f"rljob_operator_api_request_seconds_sum{{verb={verb}}}"] == 0.3


def test_no_label_is_taken_from_what_users_write_but_namespace_and_name(shown):
    job = Surroundings().to_running()
    job.runs()
    dead = job.observed.driver.status.engines[0].model_copy(update={"state": EngineState.DEAD})
    assert dead.last_error
    put(shown, job)
    families = text_string_to_metric_families(shown.metrics.text().decode())
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels == {"code", "namespace", "rljob", "phase", "reason", "error", "order", "version", "le"}


@pytest.mark.parametrize(
    ("order", "series"),
    [
        (Submit("exec driver"), "rljob_operator_driver_submissions_total"),
        (RestartEngine("engine-0", 2, "hangs"), "rljob_operator_engine_restarts_total"),
    ],
    ids=["submission", "restart"],
)
def test_an_accepted_order_is_counted_once_and_a_failed_one_apart(shown, order, series):
    failures = f"rljob_operator_order_failures_total{{order={type(order).__name__}}}"
    shown.metrics.count_order(order, False)
    shown.metrics.count_order(order, False)
    assert (shown.samples()[series], shown.samples()[failures]) == (0, 2)
    shown.metrics.count_order(order, True)
    assert (shown.samples()[series], shown.samples()[failures]) == (1, 2)


def test_the_parts_of_a_job_s_time_that_no_driver_knows_are_shown(shown):
    goodput = {"seconds": {"queue": 300.0, "train": 9.0, "backOff": 2, "pods": "x"}}
    put(shown, phase="Training", progress={"goodput": {"seconds": {**goodput["seconds"], "pods": 30}}})
    series = "rljob_operator_job_wall_seconds{namespace=ml}{part=%s}{rljob=sums}"
    found = shown.samples()
    assert {part: found.get(series % part) for part in ("queue", "train", "backOff", "pods")} == {
        "queue": 300.0,
        "train": None,
        "backOff": 2.0,
        "pods": 30.0,
    }
    put(shown, phase="Training", progress={"goodput": goodput})
    assert series % "queue" not in shown.samples(), "a status that cannot be read shows nothing"
