"""Calls of tools in pods of their own on a real node, and in the sandbox of one machine, for `docs/performance.md`.

    PYTHONPATH=tests/cluster:tests python benchmarks/tool_calls.py

As root, after `make cluster-packages`. The pods are those that the operator makes; they run on this machine, as the
driver does, so no network lies between them. Each place runs one call at a time: one right after the other, or with
pauses, in which a model would generate.
"""

import argparse
import inspect
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from local_cluster import home, node
from rljob_api.sections import Tools
from rljob_api.tool_protocol import PORT, host, tools_token
from rljob_trainer.conversations.isolation import sandbox_for
from rljob_trainer.conversations.tool_pods import NamespacePlace
from rljob_trainer.sandboxes.namespaces import NamespaceServer
from support.operator.tools_on_a_node import CONTROL_TOKEN, PODS, POOL, tools_on_a_node

PYTHON = "rljob_trainer.tools.python:python"
CALCULATOR = "rljob_trainer.tools.calculator:calculator"
CALLS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "`python`: `print(6 * 7)`": (PYTHON, {"code": "print(6 * 7)"}),
    "a function: `calculator(6 * 7)`": (CALCULATOR, {"expression": "6 * 7"}),
}
WARM_UP = 3
"""calls of each place before those that count"""
PAUSES_S = (0.0, 0.5)
"""between two calls of a place [s]"""

# Runs in the pod of the driver, which has no file of this benchmark: behind the source of `latencies`.
IN_DRIVER = """
import json, sys, threading, time
from rljob_api.sections import Tools
from rljob_trainer.conversations.tool_pods import ToolPod
given = json.load(sys.stdin)
settings = Tools(functions=("python",), memory_mib=256)
pods = [ToolPod((host, given["port"]), given["token"], settings) for host in given["hosts"]]
print(json.dumps(latencies(pods, *given["measurement"])))
"""


def latencies(places, path, arguments, seconds, pause, warm_up):  # type: ignore[no-untyped-def]
    """Return the latencies of calls in all places at once, one after the other in each [s]."""
    found = []

    def calls(place, until):  # type: ignore[no-untyped-def]
        while time.monotonic() < until:
            began = time.monotonic()
            said = place.call(path, arguments)
            found.append(time.monotonic() - began)
            if said.strip() != "42":
                raise RuntimeError(said)
            time.sleep(pause)

    for place in places:
        place.load(path)
        for _ in range(warm_up):
            place.call(path, arguments)
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=calls, args=(place, until)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


PROGRAM = inspect.getsource(latencies) + IN_DRIVER


def in_namespaces(
    places: int, path: str, arguments: Mapping[str, Any], seconds: float, pause: float, log: Path
) -> list[float]:
    """Return the latencies of calls in processes of this machine [s]."""
    settings = Tools(functions=("python",), memory_mib=256)
    box = sandbox_for(settings, [path])
    assert box is not None
    processes = [NamespacePlace(settings, NamespaceServer(box, settings.memory_mib, log)) for _ in range(places)]
    found: list[float] = latencies(processes, path, arguments, seconds, pause, WARM_UP)
    for process in processes:
        process.close()
    return found


def row(where: str, places: int, call: str, pause: float, latencies_s: Sequence[float], seconds: float) -> str:
    """Return a row of the table."""
    ordered = sorted(latencies_s)
    p50, p95 = (ordered[int(share * len(ordered))] * 1000 for share in (0.5, 0.95))
    rate = "" if pause else f"{len(ordered) / seconds:.1f}"
    return f"| {where} | {places} | {call} | {pause:g} | {rate} | {p50:.0f} | {p95:.0f} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement (default: 20)")
    seconds = parser.parse_args(arguments).seconds
    clusters = home.clusters_of_this_user()
    home.remove_orphans(clusters)
    with tempfile.TemporaryDirectory() as scratch, home.owned_directory(clusters) as directory:
        cluster = node.start_cluster(directory, os.environ, gpus=8)
        with tools_on_a_node(cluster, Path(scratch)) as place:

            def in_pods(places: int, path: str, arguments: Mapping[str, Any], pause: float) -> list[float]:
                hosts = [host(POOL, index) for index in range(places)]
                token = tools_token(CONTROL_TOKEN)
                measurement = (path, arguments, seconds, pause, WARM_UP)
                given = {"hosts": hosts, "port": PORT, "token": token, "measurement": measurement}
                found: list[float] = place.run_in_driver(PROGRAM, given)
                return found

            def beside(places: int, path: str, arguments: Mapping[str, Any], pause: float) -> list[float]:
                return in_namespaces(places, path, arguments, seconds, pause, Path(scratch) / "tools.log")

            kinds: Mapping[str, Callable[[int, str, Mapping[str, Any], float], list[float]]] = {
                "pods (`Pods`)": in_pods,
                "processes (`Namespaces`)": beside,
            }
            print(
                "| place | at once | call | pause [s] | calls/s | p50 [ms] | p95 [ms] |\n|---|---|---|---|---|---|---|"
            )
            for (call, (path, given)), pause in product(CALLS.items(), PAUSES_S):
                for places, (where, measure) in product(range(1, PODS + 1), kinds.items()):
                    found = measure(places, path, given, pause)
                    print(row(where, places, call, pause, found, seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
