"""A real engine and a real router serve who has the key of the run, and nobody else."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest
import ray

from support.trainer.fleet import HOST, Fleet, start_ray, tree

ENGINE_PATHS = (
    *("/generate", "/v1/chat/completions", "/flush_cache", "/abort_request", "/pause_generation"),
    *("/continue_generation", "/release_memory_occupation", "/resume_memory_occupation", "/start_profile"),
    *("/stop_profile", "/init_weights_update_group", "/destroy_weights_update_group", "/update_weights_from_disk"),
    *("/update_weights_from_distributed", "/update_weights_from_tensor", "/update_weight_version", "/weights_checker"),
    *("/load_lora_adapter", "/configure_logging", "/server_info", "/model_info", "/v1/loads", "/v1/models"),
)
ROUTER_PATHS = ("/generate", "/v1/chat/completions", "/workers", "/flush_cache", "/get_loads", "/wasm")


@pytest.fixture(scope="module")
def fleet(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    start_ray()
    fleet = Fleet(tiny_llama_dir, tmp_path_factory.mktemp("fleet"), names=("engine-0",))
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()
        ray.shutdown()


async def refused(session: aiohttp.ClientSession, url: str, paths: tuple[str, ...], key: str | None) -> set[str]:
    """Return the paths that refuse requests with this key, whatever their method."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    found: dict[str, set[int]] = {path: set() for path in paths}
    for path in paths:
        for method in ("GET", "POST"):
            async with session.request(method, url + path, json={}, headers=headers) as answer:
                found[path].add(answer.status)
    return {path for path, statuses in found.items() if statuses <= {401, 405} and 401 in statuses}


@pytest.mark.parametrize("key", [None, "", "a" * 64])
def test_nobody_else_is_served(fleet: Fleet, key: str | None) -> None:
    engine, router = fleet.client("engine-0").url, fleet.router.client
    assert router is not None
    assert fleet.run(refused(fleet.session, engine, ENGINE_PATHS, key), 60) == set(ENGINE_PATHS)
    assert fleet.run(refused(fleet.session, router.url, ROUTER_PATHS, key), 60) == set(ROUTER_PATHS)


def test_the_run_is_served(fleet: Fleet) -> None:
    (answer,) = fleet.generate(tokens=4)
    assert (answer.engine, len(answer.tokens_T)) == ("engine-0", 4)
    fleet.learner.take_a_step()
    assert fleet.publish(1).engines == ("engine-0",)
    fleet.run(fleet.client("engine-0").probe(10), 20)
    fleet.scale(1)
    assert fleet.listed() == [fleet.client("engine-0").url]


def test_the_key_is_in_no_log_and_no_command_line(fleet: Fleet) -> None:
    pids = [*tree(fleet.engine("engine-0").pid or 0), *tree(fleet.router.pid)]
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in (*pids, *tree(psutil.Process().pid))]
    assert not [line for line in lines if fleet.key in line]
    directory = fleet.log("engine-0").parent
    assert not [path for path in directory.rglob("*") if path.is_file() and fleet.key.encode() in path.read_bytes()]


def test_engine_and_router_listen_on_their_address_alone(fleet: Fleet) -> None:
    pids = [*tree(fleet.engine("engine-0").pid or 0), *tree(fleet.router.pid)]
    found = [each for pid in pids for each in psutil.Process(pid).net_connections("tcp")]
    assert {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN} == {HOST}


def test_what_an_engine_starts_does_not_get_the_key(fleet: Fleet) -> None:
    server, *below = tree(fleet.engine("engine-0").pid or 0)
    assert fleet.key in psutil.Process(server).environ().values()
    assert below
