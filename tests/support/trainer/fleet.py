"""Two real SGLang engines behind a real router, for tests of engines and weight sync."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import psutil
import pytest
import ray

from rljob_api.control import EngineStatus, Incident
from rljob_api.sections import Quantization, Replay, RLJob, RouterPolicy
from rljob_trainer.assembly.engine_weights import quantised, quantization_config
from rljob_trainer.engines.client import Continuation, EngineClient, EngineError, TokenRequest, open_session
from rljob_trainer.engines.command import Argument, engine_command
from rljob_trainer.engines.health import Health
from rljob_trainer.engines.key import new_key
from rljob_trainer.engines.pool import EnginePool, PoolSettings
from rljob_trainer.engines.ray_host import ActorPlacement, RayHost
from rljob_trainer.engines.router import Router, RouterSettings
from rljob_trainer.metrics import Publication
from rljob_trainer.processes.background import Background
from rljob_trainer.sync.publisher import Publisher
from rljob_trainer.sync.transport import Broadcast, Delta, Disk
from support.trainer.thread_learner import ThreadLearner

T = TypeVar("T")
HOST = "127.0.0.1"
NAMES = ("engine-0", "engine-1")
START_S = 240.0
PROMPT = (5, 6, 7)


def cpu_job(
    checkpoint: Path, precision: str = "fp32", quantization: Quantization | None = None, replay: Replay | None = None
) -> RLJob:
    """Return the smallest job that runs engines on a CPU."""
    training = {"steps": 1, "precision": precision, "optimizer": {"learningRate": 1e-5}, "experts": {"replay": replay}}
    rollout = {"promptsPerStep": 1, "sampling": {"maxNewTokens": 8}, "maxTotalTokens": 4096}
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "test"},
            "spec": {
                "model": {"checkpoint": str(checkpoint)},
                "data": {"train": {"jsonl": "unused.jsonl"}},
                "reward": {"kind": "ExactMatch"},
                "rollout": rollout | {"quantization": quantization},
                "training": training,
                "runtime": {"device": "Cpu"},
            },
        }
    )


class FreeReservation:
    """Room that nobody has to reserve; remembers whether it was given back."""

    left = 0

    async def acquire(self) -> ActorPlacement:
        return ActorPlacement({"num_cpus": 0}, {})

    def release(self) -> None:
        FreeReservation.left += 1


def start_ray() -> None:
    """Start a small Ray for engines, whose workers find what pytest finds."""
    with pytest.MonkeyPatch.context() as patch:  # Ray's workers do not know pytest's `pythonpath`
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)


class Fleet:
    """Everything that the driver has around its engines, and a learner in a thread."""

    def __init__(
        self,
        checkpoint: Path,
        directory: Path,
        names: Sequence[str] = NAMES,
        *,
        precision: str = "fp32",
        quantization: Quantization | None = None,
        replay: Replay | None = None,
        arguments: Mapping[str, Argument] | None = None,
    ) -> None:
        """`arguments` are further ones of the engines."""
        spec = cpu_job(checkpoint, precision, quantization, replay).spec
        self._directory = directory
        self.background = Background()
        self.background.__enter__()
        self.learner = ThreadLearner(checkpoint, key_value_heads=2, how=quantised(spec, checkpoint))
        self.incidents: list[tuple[Incident, str]] = []
        """with their causes"""
        self.session: aiohttp.ClientSession = self.run(_session(), 10)
        self.broadcast = Broadcast(self.learner, self.learner.specs, "gloo", 1, bucket_bytes=100_000)
        self.disk = Disk(self.learner, directory / "weights")
        self.copy = directory / "copy"
        self.hosts: dict[str, RayHost] = {}
        self.delta = Delta(self.learner, directory / "deltas", self.copy, self.hosts)
        self.publisher = Publisher(self.broadcast, timeout_s=60.0)
        settings = RouterSettings(
            RouterPolicy.ROUND_ROBIN, request_timeout_s=60.0, health_interval_s=1.0, health_timeout_s=5.0
        )
        self.key = new_key()
        self.router = Router(settings, directory / "router.log", self.session, HOST, self.key, self._failed)
        command = engine_command(spec, checkpoint, threads=1, quantization_config=quantization_config(spec, checkpoint))
        self._command = replace(command, arguments={**command.arguments, **(arguments or {})}, key=self.key)
        self.pool = EnginePool(
            names=names,
            host=self._host,
            health=lambda name: Health(name, self._failed),
            client=lambda name, url: EngineClient(self.session, name, url, self.key),
            routing=self.router,
            settings=PoolSettings(3, probe_interval_s=0.5, probe_timeout_s=5.0, start_timeout_s=START_S),
            catch_up=self.publisher.catch_up,
        )

    def _failed(self, incident: Incident, cause: str) -> None:
        self.incidents.append((incident, cause))

    def _host(self, name: str) -> RayHost:
        self.hosts[name] = RayHost(name, self._command, self.log(name), HOST, FreeReservation())
        return self.hosts[name]

    def log(self, name: str) -> Path:
        """Return the file that an engine writes its log to."""
        return self._directory / f"{name}.log"

    def start(self) -> None:
        """Start router and engines, and publish version 0."""
        self.run(self._start(), START_S + 60)
        self.background.submit(self.router.keep(self.pool.serving_urls))
        self.publish(0)

    def stop(self) -> None:
        """Stop everything; nothing may be left."""
        self.run(self._stop(), 60)
        self.background.__exit__(None, None, None)

    def publish(self, version: int) -> Publication:
        return self.run(self.pool.publish(version, self.publisher.publish), 120)

    def generate(self, tokens: int, requests: int = 1) -> list[Continuation]:
        """Return the answers to `requests` simultaneous requests for `tokens` tokens each."""
        return self.run(self.requests(tokens, requests), 120)

    async def requests(self, tokens: int, requests: int) -> list[Continuation]:
        assert self.router.client is not None
        wanted = TokenRequest(PROMPT, 1, 1.0, 1.0, -1, tokens)
        return list(await asyncio.gather(*(self._until_answered(wanted) for _ in range(requests))))

    async def _until_answered(self, wanted: TokenRequest) -> Continuation:
        """Ask again when the router had nobody who could answer, as rollouts do."""
        assert self.router.client is not None
        while True:
            try:
                (answer,) = await self.router.client.generate(wanted, 100)
                return answer
            except EngineError:
                await asyncio.sleep(0.2)

    def scale(self, wanted: int) -> None:
        """Order this number of engines."""
        self.run(_call(lambda: self.pool.scale(wanted)), 5)

    def num_requests(self, name: str) -> int:
        """Return how many requests an engine has."""
        return self.run(self.client(name).num_requests(10), 15)

    def client(self, name: str) -> EngineClient:
        return EngineClient(self.session, name, self.engine(name).url or "", self.key)

    def heal(self) -> None:
        """Restart what is dead and wait until all serve."""
        for engine in self.engines():
            if engine.state == "Dead":
                self.restart(engine.name)
        self.until(lambda: all(engine.state == "Healthy" for engine in self.engines()), START_S)
        self.until(lambda: len(self.listed()) == len(self.engines()), 20)

    def restart(self, name: str) -> None:
        """Order the next generation of an engine."""
        generation = self.engine(name).generation + 1
        self.run(_call(lambda: self.pool.restart(name, generation)), 5)

    def engines(self) -> tuple[EngineStatus, ...]:
        return self.pool.snapshot()

    def engine(self, name: str) -> EngineStatus:
        return next(engine for engine in self.engines() if engine.name == name)

    def listed(self) -> list[str]:
        """Return the urls that the router lists."""
        assert self.router.client is not None
        return [worker.url for worker in self.run(self.router.client.workers(), 10)]

    def router_answers(self) -> bool:
        assert self.router.client is not None
        return self.run(self.router.client.is_alive(), 20)

    def until(self, holds: Callable[[], bool], timeout_s: float) -> float:
        """Wait for a condition; return how long it took [s]."""
        started = time.monotonic()
        while not holds():
            assert time.monotonic() < started + timeout_s, f"not within {timeout_s} s: {self.engines()}"
            time.sleep(0.02)
        return time.monotonic() - started

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return self.background.run(work, timeout_s)

    async def _start(self) -> None:
        await asyncio.gather(self.router.start(), self.pool.start())

    async def _stop(self) -> None:
        await asyncio.gather(self.router.stop(), self.pool.stop())
        await self.learner.disconnect()
        await self.session.close()


def scheduler_of(pid: int) -> int:
    """Return the pid of a server's scheduler process."""
    children = psutil.Process(pid).children(recursive=True)
    return next(child.pid for child in children if child.name().startswith("sglang::sched"))


def tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def shared_memory_of(pids: Sequence[int]) -> set[str]:
    """Return SGLang's files in /dev/shm that these processes map."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return {word for word in maps.split() if word.startswith("/dev/shm/sglang")}


def send(signal_number: int, pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal_number)


async def _session() -> aiohttp.ClientSession:
    return open_session()


async def _call(work: Callable[[], None]) -> None:
    work()
