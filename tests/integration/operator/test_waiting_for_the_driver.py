"""The last links of the waiting chain: a node, Ray's placement group, room for engines, the model. Each is blocked on
purpose, and the job says which.
"""

import time
from collections.abc import Callable

from local_cluster.kubectl import Kubectl
from rljob_api.control import EngineState, EngineStatus, RunState
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.waiting import eventually


def message(job: Job) -> str:
    conditions = job.raw().get("status", {}).get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == "Ready"), "")


def test_a_node_that_does_not_exist_is_named_with_the_schedulers_numbers(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable
) -> None:
    start()
    job = new_job(scheduling={"nodeSelector": {"pool": "nowhere"}})
    eventually(lambda: message(job), lambda text: "node(s) didn't match Pod's node affinity/selector" in text)
    assert "0 of 3 pods are ready" in message(job)


def test_a_driver_that_starts_says_what_it_waits_for(
    namespace: str, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job()
    job.until("Training")
    head = heads.head(namespace)
    head.change(state=RunState.STARTING, engines=())
    eventually(lambda: message(job), lambda text: "Ray reserves a placement group of 4 slots" in text)
    engine = EngineStatus(name="engine-0", state=EngineState.STARTING, since=time.time())
    head.change(engines=(engine,))
    eventually(lambda: message(job), lambda text: "engine-0 waits for room in Ray" in text)
    head.change(engines=(engine.model_copy(update={"node": "10.0.0.1"}),))
    eventually(lambda: message(job), lambda text: "1 of 1 engines are not up; engine-0 loads the model" in text)
