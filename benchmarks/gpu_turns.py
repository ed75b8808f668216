"""Colocated steps on one GPU: the memory of learner and engine in each turn, and the time of leaving and coming back.

    PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/gpu_turns.py --row leaves-0.6B --out OUT

Rows: `stays-0.6B` divides the GPU, `leaves-0.6B` and `leaves-4B` have it in turns, and `host-0.6B` and `host-4B` also
keep the optimizer's state on the host. Pool, publisher and learner are those of a run, without Ray and without router:
a few steps, each of a rollout, an optimizer step and a publication, and a round trip without a step, after which the
engine must give the same greedy answer. Writes OUT/turns-ROW.json. `--device cpu --tiny` tries it without a GPU.
"""

import argparse
import asyncio
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import psutil
import torch
import yaml
from gpu_runs import Bench
from learner_gpu import TINY, loads

from rljob_api.control import Incident
from rljob_api.reading.manifest import load
from rljob_api.sections import Spec
from rljob_trainer.algorithms import factory
from rljob_trainer.assembly.settings import learner_config, pool_settings, sharding
from rljob_trainer.batches.packing import MicroBatch, Packing, pack
from rljob_trainer.data.tokenizer import load_config
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.client import EngineClient, TokenRequest, open_session
from rljob_trainer.engines.command import EngineCommand, engine_command
from rljob_trainer.engines.health import Health
from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.engines.served import Served
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.processes.background import Background
from rljob_trainer.processes.kept_process import ProcessExit
from rljob_trainer.processes.ports import free_ports
from rljob_trainer.sync.gpu_sharing import GpuSharing, InTurns
from rljob_trainer.sync.learner_link import LearnerLink
from rljob_trainer.sync.publisher import Publisher
from rljob_trainer.sync.rank.rank import PublishingRank
from rljob_trainer.sync.transport import Ipc
from rljob_trainer.sync.weights import EngineWeights

Json = dict[str, Any]
HOST, ENGINE = "127.0.0.1", "engine-0"
STEPS = 4
PUBLICATION_S, START_S = 120.0, 250.0
ROWS: dict[str, Json] = {
    "stays-0.6B": {"rollout": {"memoryFraction": 0.4}},
    "leaves-0.6B": {},
    "host-0.6B": {"training": {"offload": True}, "optimizer": {"offload": True}},
    "leaves-4B": {"training": {"recompute": "Full", "maxTokensPerGpu": 4096}},
    "host-4B": {"training": {"recompute": "Full", "maxTokensPerGpu": 4096}, "optimizer": {"offload": True}},
}
ACTION = re.compile(r"action=(\w+) .*?seconds=([\d.]+)")


class Local:
    """One rank in this process, called as `LearnerGroup` calls all of them."""

    def __init__(self, rank: PublishingRank) -> None:
        self.rank = rank

    def call(self, method: Callable[..., Any], *arguments: object) -> list[Any]:
        """Return the rank's answer."""
        return [getattr(self.rank, method.__name__)(*arguments)]


class LocalHost:
    """An engine's server on this machine, as `ray_host.RayHost` has it."""

    node: str | None = HOST

    def __init__(self, command: EngineCommand, log: Path) -> None:
        self._command = command
        self._server = EngineServer(ENGINE, log, HOST)

    async def start(self, timeout_s: float) -> Served:
        """Start it. Raises EngineStartError."""
        return await asyncio.to_thread(self._server.start, self._command, timeout_s)

    async def wait(self) -> ProcessExit:
        """Return how it ended."""
        while (ended := await asyncio.to_thread(self._server.wait, 1.0)) is None:
            pass
        return ended

    async def stop(self) -> None:
        """Kill it."""
        await asyncio.to_thread(self._server.stop)

    async def leave(self) -> None:
        """Kill it."""
        await self.stop()


class NoRouting:
    """Requests go to the engine directly."""

    async def add(self, url: str) -> None:
        """List nothing."""

    async def remove(self, url: str) -> None:
        """List nothing."""


class Seconds(logging.Handler):
    """Collects what the parts of a run log of their times."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the seconds of an action."""
        for action, seconds in ACTION.findall(record.getMessage()):
            self.add(action, float(seconds))

    def add(self, action: str, seconds: float) -> None:
        """Keep seconds that were measured here."""
        self.found.setdefault(action, []).append(seconds)

    @contextmanager
    def of(self, action: str) -> Iterator[None]:
        """Measure a block, until the GPU has done it."""
        began = time.perf_counter()
        yield
        synchronize()
        self.add(action, time.perf_counter() - began)


class Memory:
    """What the GPU holds, from moment to moment."""

    def __init__(self) -> None:
        self.moments: list[Json] = []
        self.before = used()

    def note(self, at: str) -> None:
        """Note the memory of this process, which is the learner, and of all others together, which is the engine."""
        synchronize()
        own = torch.cuda.memory_reserved() if torch.cuda.is_available() else psutil.Process().memory_info().rss
        held = torch.cuda.memory_allocated() if torch.cuda.is_available() else own
        self.moments.append({"at": at} | mib(card=used(), learner_reserved=own, learner_allocated=held))


def mib(**sizes: int) -> Json:
    """Return sizes in MiB."""
    return {name: size >> 20 for name, size in sizes.items()}


def used() -> int:
    """Return the bytes of the GPU that are in use; on a CPU those of this process and its children."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(process.memory_info().rss for process in family)


def synchronize() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Scene:
    """A learner and an engine on one GPU, and what hands its memory over."""

    def __init__(self, spec: Spec, config: LearnerConfig, out: Path, stack: ExitStack) -> None:
        """Start both; the learner first, which leaves if its configuration says so."""
        model = config.checkpoint_dir
        self.memory, self.seconds = Memory(), Seconds()
        logging.getLogger("rljob_trainer").addHandler(self.seconds)
        port = free_ports(HOST)[0]
        self.rank = PublishingRank(config, 0, 1, HOST, port, sharding(spec, load_config(model)))
        stack.callback(self.rank.close)
        self.memory.note("learner loaded")
        learner = cast(Any, Local(self.rank))
        if config.leaves:
            with self.seconds.of("leave for the first time"):
                self.rank.leave(True)
            self.memory.note("learner left")
        self.background = stack.enter_context(Background())
        self.session = self.background.run(_session(), 10)
        stack.callback(lambda: self.background.run(self.session.close(), 10))
        bucket = spec.weight_sync.bucket_mib * 2**20
        transport = Ipc(LearnerLink(learner), self.rank.specs, bucket, {ENGINE: (0,)})
        self.publisher = Publisher(transport, PUBLICATION_S)
        command = engine_command(spec, model, 2, os.environ.get("PYTHONPATH", ""), out)
        self.pool = EnginePool(
            names=[ENGINE],
            host=lambda name: LocalHost(command, out / "engine.log"),
            health=lambda name: Health(name, self._note_incident),
            client=partial(EngineClient, self.session),
            routing=NoRouting(),
            settings=pool_settings(spec),
            catch_up=self.publisher.catch_up,
            turns=InTurns(learner) if config.leaves else None,
        )
        stack.callback(lambda: self.background.run(self.pool.stop(), 60))
        with self.seconds.of("start of the engine"):
            self.background.run(self.pool.start(), START_S)
        self.weights = EngineWeights(self.pool, self.publisher, self.background)
        self.sharing = GpuSharing(self.weights, self.pool, self.background)
        self.memory.note("engine started")
        self.publish(0)

    def _note_incident(self, incident: Incident, cause: str) -> None:
        self.memory.note(f"incident: {cause} {incident.error}")

    def publish(self, version: int) -> None:
        """Publish, verified. Raises RuntimeError if the engine does not serve these weights afterwards."""
        with self.seconds.of("publication with its moves"):
            publication = self.weights.publish(version)
        if publication.failed:
            raise RuntimeError(f"publication {version}: {publication.failed}")
        self.memory.note(f"version {version} published")

    def answers(self, samples: int, tokens: int, temperature: float) -> list[tuple[int, ...]]:
        """Return the engine's answers to one prompt."""
        (engine,) = self.pool.snapshot()
        client = EngineClient(self.session, ENGINE, engine.url or "")
        wanted = TokenRequest(tuple(range(2, 34)), samples, temperature, 1.0, -1, tokens)
        found = self.background.run(client.generate(wanted, 200), 220)
        return [tuple(answer.tokens_T) for answer in found]

    def step(self, number: int, batches: tuple[MicroBatch, ...], samples: int, tokens: int) -> Json:
        """Take a step: rollout, optimizer step, publication."""
        with self.seconds.of("rollout"):
            self.answers(samples, tokens, 1.0)
        self.memory.note(f"step {number}: after the rollout")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        with self.sharing.training():
            self.memory.note(f"step {number}: the engine has left")
            with self.seconds.of("come back"):
                self.rank._state.need(gradients=True, optimizer=True)
                self.rank._state.need_optimizer()
            self.memory.note(f"step {number}: the learner is back")
            with self.seconds.of("train"):
                trained = self.rank.train(batches)
            self.memory.note(f"step {number}: trained")
        self.memory.note(f"step {number}: the learner has left but for its weights")
        self.publish(number)
        return {"loss": trained.loss, "grad norm": trained.grad_norm} | mib(learner_peak=trained.peak_memory_bytes or 0)

    def round_trip(self) -> None:
        """Hand the GPU over and back without a step, and publish the same weights."""
        with self.sharing.training():
            pass
        self.publish(self.publisher.version or 0)


async def _session() -> Any:
    return open_session()


def measured(row: str, bench: Bench) -> Json:
    """Return what a row came to."""
    size = row.rpartition("-")[2]
    model = bench.model(size)
    spec = load(yaml.safe_dump(manifest(row, bench, model))).spec
    config = learner_config(spec, factory.algorithm(spec.algorithm), model, num_threads=2, directory=bench.out)
    if not bench.on_gpu:  # a manifest cannot ask a CPU for it
        config = replace(config, leaves=not row.startswith("stays"))
        offload = {"offload": row.startswith("host")}
        config = replace(config, optimizer=config.optimizer.model_copy(update=offload))
    load_of = loads(256 if bench.tiny else 1)["mixed"]
    samples, tokens = (8, 8) if bench.tiny else (256, 128)
    vocabulary = TINY["vocab_size"] if bench.tiny else 150_000
    (batches,) = pack(
        load_of.samples(vocabulary), Packing(data_parallel=1, max_tokens=spec.training.micro_batch_tokens)
    )
    found: Json = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "learner leaves": config.leaves,
        "steps": [],
    }
    with ExitStack() as stack:
        scene = Scene(spec, config, bench.out, stack)
        found["used before [MiB]"] = scene.memory.before >> 20
        found["memory [MiB]"] = scene.memory.moments
        try:
            before = scene.answers(1, 32, 0.0)
            scene.round_trip()
            found["same greedy answer after a round trip"] = before == scene.answers(1, 32, 0.0)
            for number in range(1, STEPS + 1):
                found["steps"].append(scene.step(number, batches, samples, tokens))
            with scene.seconds.of("checkpoint with its moves"), scene.sharing.saving():
                if size != "4B":  # it would take minutes
                    scene.rank.save(bench.out / f"checkpoint-{row}-{time.time():.0f}")
            scene.memory.note("after a checkpoint")
            scene.answers(samples, tokens, 1.0)
        except Exception as error:  # noqa: BLE001 such as a GPU without memory: what came before it is the result
            found["error"] = f"{type(error).__name__}: {error}"
            scene.memory.note("after the error")
        found["seconds"] = {name: {"median": median(all_), "all": all_} for name, all_ in scene.seconds.found.items()}
    return found


def manifest(row: str, bench: Bench, model: Path) -> Json:
    """Return the manifest of a row; what limits engines or moves memory is for GPUs only."""
    change = ROWS[row] if bench.on_gpu else {}
    training: Json = {"maxTokensPerGpu": 16_384, **change.get("training", {})}
    training |= {"steps": 100, "optimizer": {"learningRate": 1e-6, **change.get("optimizer", {})}}
    job = bench.job(row, model, training=training, placement="Colocated")
    rollout: Json = job["spec"]["rollout"]
    rollout.pop("memoryFraction", None)
    rollout.update(change.get("rollout", {}))
    return job


def main() -> None:
    """Measure a row and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--row", choices=sorted(ROWS), required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a two-layer model")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    found = measured(options.row, Bench(options))
    path = options.out / f"turns-{options.row}.json"
    path.write_text(json.dumps(found, indent=2))
    sys.stdout.write(f"{path}: {found.get('error', 'complete')}\n")
    sys.exit("error" in found)


if __name__ == "__main__":
    main()
