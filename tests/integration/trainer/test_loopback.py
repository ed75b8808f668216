"""A run on one machine is not reachable from the network: real Ray, started as a run starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = """
import json, os, sys
from pathlib import Path
import psutil, ray
from rljob_api.sections import Device, Placement
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import Sizes, lay_out
from rljob_trainer.engines.placement import connect

sizes = Sizes(
    placement=Placement.COLOCATED, nodes=1, gpus_per_node=1, layout=ParallelLayout(), engines=1,
    gpus_per_engine=1,
)
connect(lay_out(sizes), Device.CPU, None, Path(sys.argv[1]))

@ray.remote
def inside():
    return ray.util.get_node_ip_address(), os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]

seen = ray.get(inside.remote())
ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
doors = [c.laddr.ip for each in ours for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
lines = [" ".join(each.cmdline()) for each in ours]
token, address = os.environ["RAY_AUTH_TOKEN"], ray.get_runtime_context().gcs_address
logs = [path for path in Path(sys.argv[1]).rglob("*") if path.is_file()]
told = [str(path) for path in logs if token.encode() in path.read_bytes()] + [line for line in lines if token in line]
facts = {"seen": seen, "doors": sorted(set(doors)), "told": told, "address": address, "token": token}
print(json.dumps(facts), flush=True)
sys.stdin.readline()
"""
STRANGER = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(ray.cluster_resources())"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    unnamed = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "GLOO", "NCCL"))}
    command = [sys.executable, "-c", RUN, str(tmp_path_factory.mktemp("ray"))]
    with subprocess.Popen(command, env=unnamed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(next(line for line in process.stdout if line.startswith("{")))
        process.kill()


def test_all_doors_of_ray_are_on_the_loopback_interface(run: Any):
    assert run["seen"] == ["127.0.0.1", "lo", "lo"]
    assert {door.removeprefix("::ffff:") for door in run["doors"]} == {"127.0.0.1"}


def test_the_token_of_ray_is_in_no_log_and_no_command_line(run: Any):
    assert run["told"] == []


@pytest.mark.parametrize("knows", [True, False])
def test_a_process_of_this_machine_needs_the_token_to_use_ray(run: Any, tmp_path: Path, knows: bool):
    there = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": run["token"] if knows else "a" * 64}
    command = [sys.executable, "-c", STRANGER, run["address"]]
    tried = subprocess.run(command, env=there | token, capture_output=True, text=True, check=False)
    assert ("CPU" in tried.stdout) == knows
    assert (tried.returncode == 0) == knows
