"""A request for the Service of a job goes to its head's pod, wherever the Service leads."""

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from rljob_operator.cache.cache import Cache
from rljob_operator.drivers.driver_api import DriverUnreachableError, RayJobs, open_session
from rljob_operator.drivers.head_resolver import HeadResolver
from rljob_operator.identity import job_of_service, service_name
from rljob_operator.world.world import DriverState
from support.operator.fake_cluster import pod
from support.operator.small_api_server import served

HOST = "sums-7f3a1-driver.ml.svc"


def head(ip: str | None, name: str = "a-head", version: str = "5", **metadata: Any) -> dict[str, Any]:
    raw = pod(name, "headgroup", is_head=True)
    raw["metadata"] |= {"resourceVersion": version, **metadata}
    raw["status"] = {**raw.get("status", {}), **({"podIP": ip} if ip else {})}
    return raw


def resolved(cache: Cache, host: str = HOST) -> list[tuple[str, int, int]]:
    async def scenario() -> list[tuple[str, int, int]]:
        found = await HeadResolver(cache).resolve(host, 8265)
        return [(each["host"], each["port"], each["family"]) for each in found]

    return asyncio.run(scenario())


@pytest.mark.parametrize(("ip", "family"), [("10.0.0.7", socket.AF_INET), ("fd00::7", socket.AF_INET6)])
def test_the_name_of_a_job_s_service_is_the_address_of_its_head(ip: str, family: int):
    cache = Cache()
    cache.put(head(ip))
    assert resolved(cache) == [(ip, 8265, family)]


@pytest.mark.parametrize("host", [HOST, "others-7f3a1-driver.ml.svc", "sums-7f3a1-driver.elsewhere.svc"])
def test_without_a_head_there_is_no_address_and_no_look_at_dns(host: str):
    cache = Cache()
    if host != HOST:
        cache.put(head("10.0.0.7"))
    with pytest.raises(OSError, match="no address now"):
        resolved(cache, host)


def test_other_names_are_those_of_dns():
    assert {each[0] for each in resolved(Cache(), "localhost")} <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("name", ["sums", "a-b-c", "a-driver", "x-12345-driver"])
def test_a_job_is_found_by_the_name_of_its_service(name: str):
    uid = "7f3a1c00-0000-4000-8000-000000000000"
    assert job_of_service(service_name(name, uid)) == (name, f"{name}-7f3a1")


@pytest.mark.parametrize("service", ["", "driver", "-driver", "sums-driver", "kubernetes", "sums-7f3a1-tools"])
def test_the_name_of_another_service_is_no_job_s(service: str):
    assert job_of_service(service) is None


def test_requests_follow_a_head_to_its_next_pod():
    async def scenario() -> list[str]:
        async def answer(request: web.Request) -> web.Response:
            asked.append(request.headers["Host"])
            return web.json_response({"status": "RUNNING"}, headers={"Connection": "close"})

        asked: list[str] = []
        cache = Cache()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        async with served(application) as url, open_session(HeadResolver(cache)) as session:
            jobs = RayJobs(session, f"http://{HOST}:{url.rpartition(':')[2]}", "token")
            with pytest.raises(DriverUnreachableError, match="no address now"):
                await jobs.look("x")
            cache.put(head("127.0.0.1"))
            assert (await jobs.look("x")).state is DriverState.RUNNING
            cache.put(head(None, "b-head", "6", creationTimestamp="2027-01-01T00:00:00Z"))
            with pytest.raises(DriverUnreachableError, match="no address now"):
                await jobs.look("x")
        return asked

    assert len(asyncio.run(scenario())) == 1
