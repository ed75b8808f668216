"""A driver that starts two engines and waits to be killed: `python engine_driver.py CHECKPOINT DIRECTORY`."""

import asyncio
import json
import sys
import time
from pathlib import Path

import ray

from rljob_trainer.engines.command import engine_command
from rljob_trainer.engines.ray_host import RayHost
from support.trainer.fleet import HOST, NAMES, START_S, FreeReservation, cpu_job


async def main(checkpoint: Path, directory: Path) -> list[RayHost]:
    """Print the pids of servers and actors in one line of JSON when the engines are ready; return who holds them."""
    command = engine_command(cpu_job(checkpoint).spec, checkpoint, threads=1)
    hosts = [RayHost(name, command, directory / f"{name}.log", HOST, FreeReservation()) for name in NAMES]
    served = await asyncio.gather(*(host.start(START_S) for host in hosts))
    actors = [await host.actor_pid() for host in hosts]
    sys.stdout.write(json.dumps({"servers": [each.pid for each in served], "actors": actors}) + "\n")
    sys.stdout.flush()
    return hosts


if __name__ == "__main__":
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    hosts = asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
    time.sleep(600)
