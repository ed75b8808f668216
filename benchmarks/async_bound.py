"""How near steps with `rollout.async` come to the shortest possible step, for `docs/async.md`.

    python benchmarks/async_bound.py
    python benchmarks/async_bound.py --seconds 4:2 --samples 4096

All parts are the product's but engine and learner, which take the given times. The engine answers each request, over
HTTP, when a rollout's seconds have passed; the learner sleeps for a training step's. A synchronous step takes the sum,
an asynchronous one at best the longer of both. `benchmarks/async_rollouts.py` has a real engine and learner.
"""

import argparse
import asyncio
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import cast

from aiohttp import web
from loop_overhead import InstantLearner, answers, engine, job, loop_parts, run_server

from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.engines.carrying import Gated
from rljob_trainer.engines.gate import Gate
from rljob_trainer.engines.generation import RouterGenerator
from rljob_trainer.loop import train
from rljob_trainer.metrics import LearnerMetrics, Publication
from rljob_trainer.parts import Parts
from rljob_trainer.processes.background import Background
from rljob_trainer.processes.garbage import collect_rarely
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.rollouts.asynchronous import AsyncRollouts
from rljob_trainer.rollouts.synchronous import SyncRollouts
from rljob_trainer.sync.gated_weights import GatedWeights
from rljob_trainer.sync.weights import EngineWeights

WARM_UP = 2
"""steps that do not count: nothing is ahead yet"""
MAX_STALENESS = 1


@dataclass(frozen=True, slots=True)
class Case:
    """The simulated times [s]."""

    rollout: float
    train: float

    @property
    def bound(self) -> float:
        """the shortest possible asynchronous step [s]"""
        return max(self.rollout, self.train)


def main() -> None:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=_case, nargs="+", default=[Case(2, 2), Case(3, 1.5), Case(1.5, 3)])
    parser.add_argument("--samples", type=int, default=512, help="of a step")
    parser.add_argument("--tokens", type=int, default=256, help="of each response")
    parser.add_argument("--steps", type=int, default=8, help="that count")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.tokens, arguments.serve)
        return
    print("| rollout [s] | train [s] | synchronous step [s] | asynchronous step [s] | shortest [s] | shortest / ours |")
    print("|---|---|---|---|---|---|")
    for case in arguments.seconds:
        waiting, ahead = (
            measured(case, arguments.samples, arguments.tokens, arguments.steps, is_ahead) for is_ahead in (False, True)
        )
        shown = " | ".join(f"{value:.2f}" for value in (waiting, ahead, case.bound, case.bound / ahead))
        print(f"| {case.rollout:g} | {case.train:g} | {shown} |", flush=True)


def _case(text: str) -> Case:
    rollout, _, training = text.partition(":")
    return Case(float(rollout), float(training))


def measured(case: Case, samples: int, tokens: int, steps: int, is_ahead: bool) -> float:
    """Return the median seconds of a step."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = engine(stack, __file__, f"--serve={case.rollout}", f"--tokens={tokens}")
        clock = time.monotonic
        spec = job(samples, tokens, WARM_UP + steps, {"async": {"maxStaleness": MAX_STALENESS}} if is_ahead else {})
        parts = loop_parts(spec, directory, url, Phases(clock), stack)
        waiting = cast(SyncRollouts, parts.rollouts)
        engines = Engines(url, waiting.background)
        waiting.sampler.version = lambda: engines.version
        parts = replace(parts, learner=TimedLearner(case.train), weights=engines)
        parts = ahead_of_training(parts, waiting, engines) if is_ahead else parts
        collect_rarely()
        ended = [clock()]
        for step in range(WARM_UP + steps):
            train(parts, step, step + 1)
            ended.append(clock())
        return median(after - before for before, after in zip(ended[WARM_UP:], ended[WARM_UP + 1 :], strict=False))


def ahead_of_training(parts: Parts, waiting: SyncRollouts, engines: "Engines") -> Parts:
    """Return the parts with rollouts that run beside training."""
    gate, generator = Gate(), cast(RouterGenerator, waiting.sampler.generator)
    generator = replace(generator, router=Gated(generator.router, gate))
    weights = GatedWeights(weights=cast(EngineWeights, engines), gate=gate, due=lambda version: True, cut=None)
    rollouts = AsyncRollouts(
        scheduler=waiting.scheduler,
        sampler=replace(waiting.sampler, generator=generator),
        sampling=waiting.sampling,
        prompts_per_step=waiting.prompts_per_step,
        samples_per_prompt=waiting.samples_per_prompt,
        max_staleness=MAX_STALENESS,
        background=waiting.background,
        waiting=weights.rescue,
    )
    return replace(parts, rollouts=rollouts, weights=weights)


@dataclass
class TimedLearner(InstantLearner):
    """Takes as long for a step as a learner that trains."""

    seconds: float

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        time.sleep(self.seconds)
        return super().train(batches)


@dataclass
class Engines:
    """The engine's weights, which are only a number. Also the pool that `GatedWeights` looks into."""

    url: str
    background: Background
    version: int = 0

    @property
    def pool(self) -> "Engines":
        return self

    def serving_urls(self) -> tuple[str, ...]:
        return (self.url,)

    def publish(self, version: int) -> Publication:
        with urllib.request.urlopen(f"{self.url}/version", data=str(version).encode()):
            self.version = version
        return Publication(version=version, seconds=0.0, engines=("engine-0",), failed={})


def serve(tokens: int, seconds: float) -> None:
    """Answer every /generate after so many seconds, with samples of the weights version that was set last."""
    body = answers(tokens, 0)

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        made = body
        await asyncio.sleep(seconds)
        return web.Response(body=made, content_type="application/json")

    async def set_version(request: web.Request) -> web.Response:
        nonlocal body
        body = answers(tokens, int(await request.text()))
        return web.Response()

    run_server({"/generate": answer, "/version": set_version})


if __name__ == "__main__":
    main()
