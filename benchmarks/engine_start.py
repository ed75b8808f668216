"""Seconds until an engine is back, and what graphs of CUDA cost there and save in rollouts.

    PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/engine_start.py

The first row compiles all kernels; each later one starts the engine in another way. Columns: seconds until it answers;
then the median of three rounds with an empty cache: response tokens per second for 1, 40, 200 and 400 responses of 128
tokens at once, and seconds until 200 prompts of 200 tokens and a prompt of 300 tokens have their first token. Below
each row stands what the start waited for, by its log. `--device cpu --tiny` tries it without a GPU, where all rows are
one.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from gpu_runs import Bench

from rljob_api.reading.manifest import load
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.command import EngineCommand, engine_command

START_S = 400.0
ANSWER_S = 300.0
ROUNDS = 3
VOCABULARY = 256
HALF = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""at most half of a batch is padding"""
QUARTER = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)
PREFILL = (8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
ROWS: Mapping[str, Mapping[str, Any]] = {
    "first": {},
    "as it is": {},
    "processes one after the other": {"starter": ()},
    "fewer decode graphs, a quarter": {"arguments": {"cuda-graph-bs-decode": list(QUARTER)}},
    "fewer decode graphs, a half": {"arguments": {"cuda-graph-bs-decode": list(HALF)}},
    "fewer prefill graphs": {"arguments": {"cuda-graph-bs-prefill": list(PREFILL)}},
    "no prefill graphs": {"arguments": {"disable-prefill-cuda-graph": True}},
}
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^]]*] (.*)")


@dataclass(frozen=True)
class Load:
    """What each engine is asked."""

    at_once: Sequence[int]
    new_tokens: int
    prompts: Sequence[tuple[int, int]]
    """how many, and of how many tokens"""


GPU = Load((1, 40, 200, 400), 128, ((200, 200), (1, 300)))
CPU = Load((1, 4), 4, ((2, 20),))


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers")
    parser.add_argument("--model", default="0.6B")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    options = parser.parse_args()
    bench = Bench(options)
    bench.out.mkdir(parents=True, exist_ok=True)
    load_ = GPU if bench.on_gpu else CPU
    model = bench.model(options.model)
    rollout = {"memoryFraction": 0.5, "promptsPerStep": 64, "contextLength": 1024}
    spec = load(yaml.safe_dump(bench.job("start", model, rollout=rollout))).spec
    command = engine_command(spec, model, 2, os.environ.get("PYTHONPATH", ""))
    heads = [f"{n} at once [tok/s]" for n in load_.at_once] + [f"{n} x {tokens} [s]" for n, tokens in load_.prompts]
    sys.stdout.write(f"| way | start [s] | {' | '.join(heads)} |\n|{'---|' * (2 + len(heads))}\n")
    found = {}
    for number, row in enumerate(options.rows):
        log = bench.out / f"engine-start-{number}.log"
        start, rates, waits = measured(changed(command, **ROWS[row]) if bench.on_gpu else command, log, load_)
        found[row] = {"start s": start, "tok/s": rates, "first tokens s": waits}
        cells = [f"{start:.1f}", *(f"{rate:,.0f}" for rate in rates), *(f"{wait:.3f}" for wait in waits)]
        sys.stdout.write(f"| {row} | {' | '.join(cells)} |\n" + "".join(f"    {line}\n" for line in phases(log)))
        sys.stdout.flush()
        (bench.out / "engine-start.json").write_text(json.dumps(found, indent=2))


def changed(
    command: EngineCommand, arguments: Mapping[str, Any] | None = None, starter: tuple[str, ...] | None = None
) -> EngineCommand:
    """Return a command with more arguments, or another starter."""
    return replace(
        command,
        arguments={**command.arguments, **(arguments or {})},
        starter=command.starter if starter is None else starter,
    )


def measured(command: EngineCommand, log: Path, load_: Load) -> tuple[float, list[float], list[float]]:
    """Start an engine, ask it, and stop it; return the seconds of its start, and what `asked` returns."""
    server = EngineServer("engine-0", log, "127.0.0.1")
    served = server.start(command, START_S)
    try:
        return (served.seconds, *asyncio.run(asked(served.url, load_)))
    finally:
        server.stop()


async def asked(url: str, load_: Load) -> tuple[list[float], list[float]]:
    """Return response tokens per second, and seconds to the first tokens."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    new = load_.new_tokens
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await seconds(session, url, 4, 64, new)  # what is compiled at the first request
        rates = [n * new / await median(session, url, n, 16, new) for n in load_.at_once]
        return rates, [await median(session, url, n, tokens, 1) for n, tokens in load_.prompts]


async def median(session: aiohttp.ClientSession, url: str, prompts: int, tokens: int, new: int) -> float:
    """Return the median of the rounds [s]."""
    return statistics.median([await seconds(session, url, prompts, tokens, new) for _ in range(ROUNDS)])


async def seconds(session: aiohttp.ClientSession, url: str, prompts: int, tokens: int, new: int) -> float:
    """Return how long so many prompts of so many tokens took, with `new` tokens each, from an empty cache."""
    async with session.post(f"{url}/flush_cache?timeout=30") as answer:
        answer.raise_for_status()
    sampling = {"max_new_tokens": new, "ignore_eos": True, "temperature": 1.0}
    texts = [random.choices(range(10, VOCABULARY), k=tokens) for _ in range(prompts)]
    bodies = [{"input_ids": text, "sampling_params": sampling} for text in texts]
    began = time.perf_counter()

    async def ask(body: Mapping[str, Any]) -> None:
        async with session.post(f"{url}/generate", json=body) as answer:
            answer.raise_for_status()
            await answer.read()

    await asyncio.gather(*map(ask, bodies))
    return time.perf_counter() - began


def phases(log: Path) -> list[str]:
    """Return the lines of a log that end a pause of two seconds or more, with the pause: what a start waited for."""
    found, last = [], None
    for line in log.read_text(errors="replace").splitlines():
        if (match := STAMP.match(line)) is None:
            continue
        at = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S")
        if last is not None and (at - last).total_seconds() >= 2:
            found.append(f"{(at - last).total_seconds():3.0f} s until {match[2][:100]}")
        last = at
        if "fired up" in line:
            break
    return found


if __name__ == "__main__":
    main()
