"""The operator's process as a whole, from its command line to its exit code, with a small API server and fake heads:
whether every part has the others. What the parts do is tested with each of them.
"""

import asyncio
import gc
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rljob_api.control import Progress
from rljob_operator import process
from rljob_operator.cluster import reflector
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.drivers.driver_api import open_session
from rljob_operator.identity import Manifest
from rljob_operator.job.retention import RUN_LABEL
from rljob_operator.process import run
from rljob_operator.runtime import leader
from rljob_operator.runtime.background_tasks import TASK_ENDED
from rljob_operator.runtime.leader import LOST
from rljob_operator.settings import settings
from support.operator.fake_cluster import pod
from support.operator.fake_head import FakeHeads, Handler
from support.operator.operator_world import raw_job
from support.operator.small_api_server import SmallApiServer, served
from support.waiting import becomes_true, until

NOON = "2026-11-27T12:00:00Z"
RENEWAL = ("PUT", "apis/coordination.k8s.io/v1/namespaces/ops/leases/rljob")
OPTIONS = (
    "--lease-namespace=ops",
    "--lease=rljob",
    "--identity=me",
    "--port=0",
    "--workers=2",
    "--image=rljob/trainer:test",
    '--storage={"emptyDir": {}}',
    "--sweep-seconds=0.05",
)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.fixture(autouse=True)
def no_second_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes come by watches alone."""
    monkeypatch.setattr(process, "RESYNC_S", 1e6)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A signal that the operator does not take fails its test, and not all tests."""

    def is_not_taken(number: int, _: object) -> None:
        raise AssertionError(f"nobody takes signal {number}")

    before = {number: signal.signal(number, is_not_taken) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@dataclass
class House:
    """A process that runs, and its surroundings."""

    api: SmallApiServer
    heads: FakeHeads
    running: "asyncio.Task[int]"
    log: Callable[[], str]
    polls: list[str]
    """the revision that each poll of a driver knew"""
    died: list[int]
    """the codes with which it would have ended at once"""

    def job(self, name: str = "sums", namespace: str = "ml") -> Manifest:
        found = self.api.get("RLJob", namespace, name)
        assert found is not None
        status: Manifest = found.get("status", {})
        return status

    async def comes(self, holds: Callable[[], Any]) -> None:
        await becomes_true(lambda: self.running.done() or bool(holds()))
        assert not self.running.done(), f"it has ended: {self.running}"

    async def phase_comes(self, phase: str) -> None:
        await self.comes(lambda: self.job().get("phase") == phase)

    async def page(self, path: str) -> tuple[int, str]:
        found = re.search(r"action=serve port=(\d+)", self.log())
        assert found is not None
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{found[1]}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def value(self, series: str) -> float:
        """Return the value of one of its metrics."""
        _, text = await self.page("/metrics")
        found = re.search(rf"^{re.escape(series)} (.*)$", text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])

    def pods_come(self) -> None:
        """KubeRay makes the pods of the job, and they are ready."""
        for name, group in (("a-head", "headgroup"), ("a-trainer", "trainer"), ("a-rollout", "rollout")):
            self.api.put(pod(name, group, is_head=group == "headgroup"))

    async def stops(self) -> int:
        """Stop it as a kubelet does, and return its exit code."""
        os.kill(os.getpid(), signal.SIGTERM)
        return await self.running


@pytest.fixture
def operate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> Callable[..., Any]:
    """Return what runs a scenario with a process that has these options."""

    async def live(api: SmallApiServer, options: tuple[str, ...], scenario: Callable[[House], Awaitable[Any]]) -> Any:
        heads, polls, died = FakeHeads(), list[str](), list[int]()

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.endswith("/v1/status"):
                polls.append(request.query.get("since", ""))
            return await handler(request)

        application = heads.application()
        application.middlewares.append(note)
        async with AsyncExitStack() as stack:
            kubeconfig = await stack.enter_async_context(api.serving(tmp_path))
            url = await stack.enter_async_context(served(application))
            session = await stack.enter_async_context(open_session())
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            places = (f"--kubeconfig={kubeconfig}", f"--service-url={url}/{{namespace}}/{{service}}")
            given = settings([*OPTIONS, *places, *options], {})
            cluster = await Cluster.connect(given.kubeconfig, given.identity)
            stack.push_async_callback(cluster.close)
            running = asyncio.create_task(run(given, cluster, session, died.append))
            try:
                return await scenario(House(api, heads, running, lambda: caplog.text, polls, died))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def operate(api: SmallApiServer, *options: str) -> Callable[..., Any]:
        caplog.set_level(logging.INFO)
        return lambda scenario: asyncio.run(live(api, options, scenario))

    return operate


def test_a_job_of_a_watched_namespace_trains_until_the_operator_stops(operate):
    other = raw_job("other")
    other["metadata"].update(namespace="elsewhere", uid="another")
    api = SmallApiServer(raw_job(), other)

    async def scenario(house: House) -> int:
        await house.phase_comes("Provisioning")
        house.pods_come()
        await house.phase_comes("Training")
        assert house.job()["release"] == "ops/rljob"
        lease = api.get("Lease", "ops", "rljob")
        assert lease is not None and lease["spec"]["holderIdentity"] == "me"
        assert await house.page("/healthz") == (200, "ok\n")
        shown = {
            "rljob_operator_is_leader": 1.0,
            'rljob_operator_job_phase{namespace="ml",phase="Training",rljob="sums"}': 1.0,
            "rljob_operator_driver_submissions_total": 1.0,
            "rljob_operator_driver_start_seconds_count": 1.0,
        }
        assert {series: await house.value(series) for series in shown} == shown
        assert await house.value("rljob_operator_queue_pass_seconds_count") >= 1.0
        assert await house.value("rljob_operator_queue_depth") <= 1.0, "of one job"
        assert await house.value("rljob_operator_watch_silence_seconds") < 60.0, "the last writes may be on their way"
        await house.comes(lambda: [each for each in api.all("ConfigMap") if RUN_LABEL in each["metadata"]["labels"]])
        return await house.stops()

    assert operate(api, "--namespace=ml", "--run-directory-ttl=60")(scenario) == 0
    lease = api.get("Lease", "ops", "rljob")
    assert lease is not None and lease["spec"]["holderIdentity"] == "", "another replica can take it at once"
    assert "status" not in (api.get("RLJob", "elsewhere", "other") or {})
    assert api.listed_everywhere == [], "it has rights in its namespaces alone"


def test_mere_progress_of_a_driver_is_not_reconciled_at_every_step(operate):
    reports = 20

    async def scenario(house: House) -> float:
        await house.phase_comes("Provisioning")
        house.pods_come()
        await house.phase_comes("Training")
        before = await house.value("rljob_operator_reconcile_seconds_count")
        for step in range(4, 4 + reports):
            head = house.heads.head("ml")
            head.change(progress=Progress(step=step, steps=100))
            await house.comes(lambda head=head: str(head.status.revision) in house.polls)
        after = await house.value("rljob_operator_reconcile_seconds_count")
        await house.stops()
        return after - before

    assert operate(SmallApiServer(raw_job()))(scenario) < reports / 4


def test_its_time_is_the_api_server_s_whose_clock_dates_the_pods(operate):
    async def scenario(house: House) -> None:
        await house.phase_comes("Provisioning")
        await house.stops()

    api = SmallApiServer(raw_job())
    api.ahead_s = 600.0
    before = api.now()
    operate(api)(scenario)
    begun = datetime.fromisoformat(api.get("RLJob", "ml", "sums")["status"]["attempts"][0]["startAfter"]).timestamp()
    assert begun == pytest.approx(before, abs=60.0)


def small_node() -> Manifest:
    status = {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "110"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {}, "status": status}


@pytest.mark.parametrize(("autoscaler", "phase"), [((), "Provisioning"), (("--autoscaler=[]",), "Queued")])
def test_a_job_that_no_node_has_room_for_waits_where_no_nodes_can_come(operate, autoscaler, phase):
    async def scenario(house: House) -> None:
        await house.phase_comes(phase)
        await house.stops()

    api = SmallApiServer(raw_job(), small_node())
    operate(api, '--worker-resources={"requests": {"cpu": "4"}}', *autoscaler)(scenario)
    assert {"Pod", "RLJob"} <= set(api.listed_everywhere)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replica_that_waits_for_the_lease_answers_probes_and_ends_at_once(operate, number):
    held = {"holderIdentity": "another", "leaseDurationSeconds": 15}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": held}
    api = SmallApiServer(raw_job(), {**lease, "metadata": {"namespace": "ops", "name": "rljob"}})

    async def scenario(house: House) -> tuple[int, bool]:
        await house.comes(lambda: api.requests)
        assert (await house.page("/healthz"))[0] == 200
        assert await house.value("rljob_operator_is_leader") == 0.0
        os.kill(os.getpid(), number)
        code = await house.running
        with pytest.raises(aiohttp.ClientConnectorError):
            await house.page("/healthz")
        return code, house.running.done()

    assert operate(api)(scenario) == (0, True)
    assert "status" not in (api.get("RLJob", "ml", "sums") or {})
    assert (api.get("Lease", "ops", "rljob") or {})["spec"] == held


def test_a_process_whose_sweep_ends_by_a_bug_releases_the_lease_and_fails(operate):
    api = SmallApiServer(raw_job())
    api.broken.add(RUN_LABEL)

    async def scenario(house: House) -> int:
        code = await house.running
        assert "action=end reason=TaskEnded task=sweep error=KeyError" in house.log()
        return code

    assert operate(api, "--run-directory-ttl=60")(scenario) == TASK_ENDED
    assert (api.get("Lease", "ops", "rljob") or {})["spec"]["holderIdentity"] == ""


def test_a_leader_that_lists_a_large_cluster_keeps_its_lease(operate, monkeypatch: pytest.MonkeyPatch):
    """It did not renew the Lease until the first list was complete, and was ended by its own guard: for ever."""
    monkeypatch.setattr(leader, "RETRY_S", 0.01)
    api = SmallApiServer(raw_job())
    api.waits_for["configmaps"] = lambda: api.requests.count(RENEWAL) > 2

    async def scenario(house: House) -> tuple[int, list[int]]:
        await house.phase_comes("Provisioning")
        return await house.stops(), house.died

    assert operate(api)(scenario) == (0, [])


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_that_does_not_renew_its_lease_ends_at_once_also_if_it_hangs(operate, monkeypatch, hangs):
    monkeypatch.setattr(leader, "RETRY_S", 0.05)
    monkeypatch.setattr(leader, "RENEW_DEADLINE_S", 0.5)
    api = SmallApiServer(raw_job())

    async def scenario(house: House) -> set[int]:
        await house.phase_comes("Provisioning")
        if hangs:
            until(lambda: bool(house.died))  # not awaited: the loop of the process hangs
        else:
            del api.kinds["Lease"]
            await house.comes(lambda: house.died)
        return set(house.died)

    assert operate(api)(scenario) == {LOST}


def test_a_process_that_stops_does_not_wait_for_the_connections_of_drivers_and_scrapers(operate, monkeypatch):
    """An operator that waits for them keeps another replica from the Lease."""
    monkeypatch.setattr(leader, "RETRY_S", 0.1)

    async def scenario(house: House) -> int:
        await house.phase_comes("Provisioning")
        house.pods_come()
        await house.phase_comes("Training")
        before = house.api.requests.count(RENEWAL)
        await house.stops()
        return house.api.requests.count(RENEWAL) - before

    assert operate(SmallApiServer(raw_job()))(scenario) < 20, "in 5 s there are 50, and the last one releases it"


def nested(name: str = "evil") -> Manifest:
    """Return a job that the API server keeps, and that Python cannot read."""
    raw = raw_job(name)
    raw["metadata"].update(namespace="a", uid="another")
    raw["spec"]["extraArgs"] = {"sglang": {"json-model-override-args": "DEEP"}}
    return raw


@pytest.mark.parametrize("depth", [70, 300, 1200, 9000])
@pytest.mark.parametrize("is_there_first", [True, False])
def test_a_job_that_is_nested_too_deep_is_told_so_and_all_others_go_on(operate, depth: int, is_there_first: bool):
    api = SmallApiServer(raw_job(), *([nested()] if is_there_first else []))
    api.depth = depth

    async def scenario(house: House) -> None:
        await house.phase_comes("Provisioning")
        if not is_there_first:
            api.put(nested())
        await house.comes(lambda: house.job("evil", "a").get("phase") == "Invalid")
        (said,) = [each["message"] for each in house.job("evil", "a")["conditions"] if each["type"] == "Admitted"]
        assert said == "spec.extraArgs.sglang.json-model-override-args: is nested deeper than 64 levels"
        house.pods_come()
        await house.phase_comes("Training")
        await house.stops()

    operate(api)(scenario)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_namespace_that_is_gone_with_its_rights_costs_its_own_jobs_alone(operate, monkeypatch, is_running: bool):
    monkeypatch.setattr(reflector, "RETRY_S", 0.01)
    other = raw_job("other")
    other["metadata"].update(namespace="gone", uid="another")
    api = SmallApiServer(raw_job(), other)

    async def scenario(house: House) -> None:
        if is_running:
            await house.phase_comes("Provisioning")
        api.refused.add("gone")
        if not is_running:
            assert house.job("other", "gone") == {}
        await house.phase_comes("Provisioning")
        house.pods_come()
        await house.phase_comes("Training")
        assert (await house.page("/healthz"))[0] == 200
        api.refused.clear()
        await house.comes(lambda: house.job("other", "gone").get("phase") == "Provisioning")
        await house.stops()

    if not is_running:
        api.refused.add("gone")
    operate(api, "--namespace=ml", "--namespace=gone")(scenario)


@pytest.mark.parametrize("plural", ["secrets", "rljobs", "pods", "rayclusters"])
def test_a_start_waits_for_an_api_server_that_fails(operate, monkeypatch, plural: str):
    monkeypatch.setattr(process, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(reflector, "RETRY_S", 0.01)
    api = SmallApiServer(raw_job())
    api.failures[plural] = 3

    async def scenario(house: House) -> int:
        await house.phase_comes("Provisioning")
        return await house.stops()

    assert operate(api)(scenario) == 0
    assert api.failures[plural] == 0


def test_a_start_that_waits_for_an_api_server_ends_when_it_shall(operate):
    api = SmallApiServer(raw_job())
    api.failures["rljobs"] = 1000

    async def scenario(house: House) -> int:
        await house.comes(lambda: "action=list outcome=failed" in house.log())
        return await house.stops()

    assert operate(api)(scenario) == 0


def test_a_process_whose_watch_ends_by_a_bug_releases_the_lease_and_fails(operate, monkeypatch: pytest.MonkeyPatch):
    async def ends(_: object) -> None:
        raise OSError("a bug")

    api = SmallApiServer(raw_job())
    monkeypatch.setattr(reflector.Reflector, "follow", ends)

    async def scenario(house: House) -> int:
        return await house.running

    assert operate(api)(scenario) == TASK_ENDED
    assert (api.get("Lease", "ops", "rljob") or {})["spec"]["holderIdentity"] == ""


def test_an_older_and_a_newer_operator_over_the_same_jobs_lose_nothing(operate):
    """The newer one had one more field, phase and condition; the older one follows its jobs, and keeps all of it."""
    api = SmallApiServer(raw_job(), raw_job("waits"))
    of_newer = {
        "observedGeneration": 1,
        "phase": "Warming",
        "goodput": {"seconds": 3},
        "conditions": [{"type": "Warm", "status": "True", "reason": "A", "message": "", "lastTransitionTime": NOON}],
    }

    async def scenario(house: House) -> Manifest:
        await house.phase_comes("Provisioning")
        house.pods_come()
        await house.phase_comes("Training")
        found = api.get("RLJob", "ml", "sums")
        assert found is not None
        newer = {**found["status"], "goodput": {"seconds": 3}}
        newer["attempts"] = [{**each, "zone": "b"} for each in newer["attempts"]]
        api.put({**found, "status": newer, "spec": {**found["spec"], "suspend": True}})
        await house.phase_comes("Suspending")
        await house.comes(lambda: house.job("waits").get("phase") == "Provisioning")
        await house.stops()
        return house.job()

    waiting = api.get("RLJob", "ml", "waits")
    assert waiting is not None
    api.put({**waiting, "metadata": {**waiting["metadata"], "uid": "another"}, "status": of_newer})
    status = operate(api)(scenario)
    assert (status["goodput"], status["attempts"][0]["zone"]) == ({"seconds": 3}, "b")
    kept = (api.get("RLJob", "ml", "waits") or {})["status"]
    assert kept["goodput"] == {"seconds": 3}
    assert [each["status"] for each in kept["conditions"] if each["type"] == "Warm"] == ["True"]
