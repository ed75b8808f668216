"""Agents' sessions through the gateway beside the same requests sent directly, with and without affinity to engines.

    python3 benchmarks/agent_sessions.py                              512 sessions of 10 turns, on all GPUs
    python3 benchmarks/agent_sessions.py --engines 2                  two engines, also if there is one GPU
    python3 benchmarks/agent_sessions.py --device cpu --tiny --engines 2 --sessions 8 --turns 3

Real engines with random weights, the real router, real gateways. All sessions run at once, with nothing between two
turns, so the engines are always full. The ways are measured in turns, with empty prefix caches; a figure is the median
of the rounds. Prefix hits are the engines' own counters: cached tokens of all tokens of prompts. `outside` is the mean
time of a turn that no engine spent on it, by the engines' own clocks: what the gateway adds to it does not depend on
how full the engines are.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import aiohttp
import psutil
import torch
import yaml
from gpu_runs import SIZES, SMALL, Bench
from learner_gpu import write_checkpoint
from session_players import END, FIRST_WORD, TEMPLATE, Course, Played, Players, Turn
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob, RouterPolicy
from rljob_trainer.assembly.settings import router_settings
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.client import EngineClient, open_session
from rljob_trainer.engines.command import EngineCommand, engine_command
from rljob_trainer.engines.router import Router
from rljob_trainer.gateway.client import GatewayProcess, Gateways, num_gateways
from rljob_trainer.gateway.record import Opening, Record, Settings
from rljob_trainer.gateway.tree import leaves

Json = dict[str, Any]

HOST = "127.0.0.1"
DEADLINE_S = 300.0
CACHE_SHARE = 0.6
"""of a GPU's memory, for the caches of its engines together"""
DIRECT, GATEWAY, WITHOUT = "directly", "gateway", "gateway, no affinity"
WAYS = (DIRECT, GATEWAY, WITHOUT)
COLUMNS = (
    *("sessions", "turns/s", "tokens/s", "p50 [ms]", "p99 [ms]", "p50 added [ms]", "outside [ms]"),
    *("gateway CPU [ms]", "prefix hits", "failures", "branches"),
)
COUNTERS = {
    "prompt": "sglang:prompt_tokens_total",
    "cached": "sglang:cached_tokens_total",
    "seconds": "sglang:e2e_request_latency_seconds_sum",
    "requests": "sglang:e2e_request_latency_seconds_count",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """One way in one round. Times are of turns."""

    seconds: float
    turns_per_s: float
    tokens_per_s: float
    p50_ms: float
    p99_ms: float
    outside_ms: float
    """mean of the time that no engine spent on a turn"""
    cpu_ms: float
    """of the gateways' processes for a turn"""
    hits: float
    failures: int
    first_error: str
    branches: int
    """sessions that are more than one sequence: their tokens were not continued"""
    opening_s: float
    """for all sessions to be opened, before the first turn, and closed, after the last one"""


@dataclass(frozen=True, slots=True)
class Service:
    """What serves the sessions."""

    engines: Sequence[EngineClient]
    routers: Mapping[str, str]
    """URL by way"""
    gateways: Gateways
    players: Players

    async def figures(self, way: str, sessions: int, course: Course) -> Figures:
        """Return what all sessions at once came to."""
        await asyncio.gather(*(asked(engine, "POST", "/flush_cache") for engine in self.engines))
        began = time.monotonic()
        opening = Opening(self.routers[way], temperature=1.0, top_p=1.0, top_k=-1)
        opened = [] if way == DIRECT else await gathered(sessions, lambda: self.gateways.open_session(opening))
        if way == DIRECT:
            url, run = opening.router, f"{began:.3f}"  # another name for each round: the router remembers it
            played = [Played(number, f"{run}-{number}", url) for number in range(sessions)]
        else:
            played = [Played(number, each.name, each.base_url, each.key) for number, each in enumerate(opened)]
        opening_s, before = time.monotonic() - began, await self.counted()
        turns = await asyncio.to_thread(self.players.play, played, course)
        after, began = await self.counted(), time.monotonic()
        records = await asyncio.gather(*(self.gateways.close_session(each) for each in opened))
        made = {name: after[name] - before[name] for name in after}
        return figures(turns, made, records, opening_s + time.monotonic() - began)

    async def counted(self) -> dict[str, float]:
        """Return the engines' counters, all engines together, and the seconds of CPU of all gateways."""
        texts = await asyncio.gather(*(asked(engine, "GET", "/metrics") for engine in self.engines))
        counted = {name: sum(total(text, counter) for text in texts) for name, counter in COUNTERS.items()}
        spent = [psutil.Process(each.pid).cpu_times() for each in self.gateways.processes]
        return counted | {"cpu": sum(each.user + each.system for each in spent)}


def main() -> None:
    """Print a row for each way, and what the gateway adds."""
    arguments = parsed()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    bench = Bench(arguments)
    model = random_model(bench)
    small = arguments.tiny
    course = Course(
        turns=arguments.turns or (3 if small else 10),
        question=arguments.question or (8 if small else 61),
        answer=arguments.answer or (4 if small else 64),
        vocabulary=500 if small else 150_000,
        deadline_s=DEADLINE_S,
    )
    sessions = arguments.sessions or (8 if small else 512)
    context = course.tokens
    job = manifest(bench, model, sessions, context)
    command = engine_command(job.spec, model, max(1, cores() // arguments.engines))
    command = with_cache(command, bench, model, arguments.engines, sessions * context)
    players = Players(arguments.players or max(1, min(4, cores() // 4)))  # start while engines start
    servers = [server(bench, number) for number in range(arguments.engines)]
    try:
        with ThreadPoolExecutor() as starting:
            urls = [
                each.url
                for each in starting.map(
                    EngineServer.start, servers, [command] * len(servers), [DEADLINE_S] * len(servers)
                )
            ]
        said(f"engines have started after {time.monotonic() - began:.0f} s")
        found = asyncio.run(measured(job, model, urls, sessions, course, players, arguments))
    finally:
        players.close()
        for each in servers:
            each.stop()
    rows = {way: [{name: getattr(each, name) for name in Figures.__slots__} for each in found[way]] for way in found}
    (bench.out / "agent-sessions.json").write_text(json.dumps(rows, indent=1))
    heading = (
        f"{sessions} sessions of {course.turns} turns, {course.question + 3} tokens asked and {course.answer} answered"
    )
    lines = [
        f"{heading}; {arguments.engines} engines on {devices(bench)}; {len(found[DIRECT])} rounds",
        "",
        *table(found),
    ]
    print("\n".join([*lines, "", *added(found), f"all of it took {time.monotonic() - began:.0f} s"]))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a two-layer model, few sessions and turns, to try it")
    parser.add_argument("--engines", type=int, default=2, help="divided over all GPUs; affinity matters from two on")
    parser.add_argument("--sessions", type=int, help="at once; 512, or 8 with --tiny")
    parser.add_argument("--turns", type=int, help="of a session; 10, or 3 with --tiny")
    parser.add_argument("--question", type=int, help="tokens that the client adds in a turn; 61, or 8 with --tiny")
    parser.add_argument("--answer", type=int, help="tokens of an answer; 64, or 4 with --tiny")
    parser.add_argument("--policy", choices=("Random", "RoundRobin"), default="Random", help="instead of affinity")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=150.0, help="no further round begins after so long")
    parser.add_argument("--players", type=int, help="processes of clients; a quarter of the cores, at most 4")
    return parser.parse_args()


def cores() -> int:
    return len(os.sched_getaffinity(0))


def random_model(bench: Bench) -> Path:
    """Return a random model with a chat template; its tokens are numbers, but for what ends a turn."""
    model = bench.out / "model-sessions"
    shape = {**SIZES["0.6B"], **SMALL} if bench.tiny else SIZES["0.6B"]
    if not (model / "chat_template.jinja").exists():
        write_checkpoint(model, shape, "cuda" if bench.on_gpu else "cpu")
        numbers = {str(number): number for number in range(FIRST_WORD - 2, shape["vocab_size"])}
        words = Tokenizer(models.WordLevel({"<unknown>": 0, "<end>": END} | numbers, unk_token="<unknown>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
        fast.save_pretrained(model)
        (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


def manifest(bench: Bench, model: Path, sessions: int, context: int) -> RLJob:
    """Return the job whose engines and router are used."""
    change: Json = {"promptsPerStep": max(1, sessions // 8), "samplesPerPrompt": 8}
    change |= {"contextLength": context, "sampling": {"maxNewTokens": context // 2}, "memoryFraction": 0.85}
    return load(yaml.safe_dump(bench.job("agent-sessions", model, rollout=change, placement="Disaggregated")))


def with_cache(command: EngineCommand, bench: Bench, model: Path, engines: int, tokens: int) -> EngineCommand:
    """Limit an engine's cache to its share of a GPU: engines that start together see each other's memory as free.

    On a CPU it gets room for all sessions, `tokens` in all.
    """
    if bench.on_gpu:
        shape = json.loads((model / "config.json").read_text())
        bytes_per_token = 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
        on_one = -(-engines // torch.cuda.device_count())
        memory = torch.cuda.get_device_properties(0).total_memory
        tokens = int(CACHE_SHARE * memory / on_one / bytes_per_token)
    return replace(command, arguments={**command.arguments, "max-total-tokens": tokens})


def server(bench: Bench, number: int) -> EngineServer:
    log, gpu = bench.out / f"sessions-engine-{number}.log", number % max(1, torch.cuda.device_count())
    return EngineServer(f"engine-{number}", log, HOST, {"CUDA_VISIBLE_DEVICES": str(gpu)} if bench.on_gpu else None)


async def measured(
    job: RLJob,
    model: Path,
    urls: Sequence[str],
    sessions: int,
    course: Course,
    players: Players,
    arguments: argparse.Namespace,
) -> dict[str, list[Figures]]:
    """Return the figures of all rounds, by way."""
    settings = router_settings(job.spec)
    policies = {
        "affine": replace(settings, keeps_sessions=True),
        "other": replace(settings, keeps_sessions=False, policy=RouterPolicy(arguments.policy)),
    }
    served = Settings(
        str(model), course.tokens, course.turns * course.answer, course.turns, DEADLINE_S * 2, DEADLINE_S, DEADLINE_S
    )
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        engines = [EngineClient(session, f"engine-{number}", url) for number, url in enumerate(urls)]
        routers = {
            name: Router(each, arguments.out / f"router-{name}.log", session, HOST) for name, each in policies.items()
        }
        gateways = Gateways(
            tuple(
                GatewayProcess(served, arguments.out / f"sessions-gateway-{number}.log", session, "")
                for number in range(num_gateways(sessions, cores()))
            )
        )
        stack.push_async_callback(gateways.stop)
        for router in routers.values():
            stack.push_async_callback(router.stop)
        await asyncio.gather(gateways.start(), *(router.start() for router in routers.values()))
        await asyncio.gather(*(engine.label_weights(0, DEADLINE_S) for engine in engines))
        for router in routers.values():
            await asyncio.gather(*(router.add(url) for url in urls))
        found_at = {name: router.client.url for name, router in routers.items() if router.client is not None}
        by_way = {way: found_at["other" if way == WITHOUT else "affine"] for way in WAYS}
        service = Service(engines, by_way, gateways, players)
        return await rounds(service, sessions, course, arguments.rounds, time.monotonic() + arguments.seconds)


async def rounds(
    service: Service, sessions: int, course: Course, most: int, deadline: float
) -> dict[str, list[Figures]]:
    """Measure all ways in turns, after a warm-up that does not count; the first round ends in any case."""
    for way in WAYS:
        await service.figures(way, sessions, replace(course, turns=min(2, course.turns)))
    found: dict[str, list[Figures]] = {way: [] for way in WAYS}
    for number in range(most):
        if number and time.monotonic() > deadline:
            break
        for way in WAYS:
            found[way].append(await service.figures(way, sessions, course))
            said(f"round {number + 1}: {row(way, found[way][-1:])}")
    return found


async def gathered(number: int, ask: Callable[[], Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*(ask() for _ in range(number))))


async def asked(engine: EngineClient, method: str, path: str) -> str:
    """Return what an engine answers."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with engine.session.request(method, engine.url + path, timeout=timeout) as answer:
        answer.raise_for_status()
        return await answer.text()


def total(text: str, counter: str) -> float:
    """Return the sum of a counter of Prometheus over its labels."""
    return sum(float(value) for value in re.findall(rf"^{re.escape(counter)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def figures(turns: Sequence[Turn], made: Mapping[str, float], records: Sequence[Record], opening_s: float) -> Figures:
    """Return what turns came to, beside what engines have counted and gateways have recorded."""
    good = [turn for turn in turns if not turn.error]
    if not good:
        raise SystemExit(f"no turn has succeeded; the first error: {turns[0].error}")
    seconds = max(turn.ended for turn in turns) - min(turn.began for turn in turns)
    took_ms = [1e3 * (turn.ended - turn.began) for turn in good]
    errors = [turn.error for turn in turns if turn.error]
    return Figures(
        seconds=seconds,
        turns_per_s=len(good) / seconds,
        tokens_per_s=sum(turn.tokens for turn in good) / seconds,
        p50_ms=median(took_ms),
        p99_ms=quantiles(took_ms, n=100, method="inclusive")[-1],
        outside_ms=fmean(took_ms) - 1e3 * made["seconds"] / max(1.0, made["requests"]),
        cpu_ms=1e3 * made["cpu"] / len(good),
        hits=made["cached"] / max(1.0, made["prompt"]),
        failures=len(errors),
        first_error=errors[0] if errors else "",
        branches=sum(len(leaves(record.turns)) != 1 for record in records),
        opening_s=opening_s,
    )


def table(found: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Return a row for each way: medians of its rounds."""
    return [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(row(way, rounds, middle(found[DIRECT], "p50_ms")) for way, rounds in found.items()),
    ]


def row(way: str, rounds: Sequence[Figures], direct_ms: float | None = None) -> str:
    """Return a line; `direct_ms` is the median of the same turns without a gateway [ms]."""
    added_ms = "" if direct_ms is None else f" {middle(rounds, 'p50_ms') - direct_ms:.1f} |"
    return (
        f"| {way} | {middle(rounds, 'turns_per_s'):.1f} | {middle(rounds, 'tokens_per_s'):.0f}"
        f" | {middle(rounds, 'p50_ms'):.1f} | {middle(rounds, 'p99_ms'):.1f} |{added_ms}"
        f" {middle(rounds, 'outside_ms'):.1f} | {middle(rounds, 'cpu_ms'):.2f} | {middle(rounds, 'hits'):.1%}"
        f" | {sum(each.failures for each in rounds)} | {sum(each.branches for each in rounds)} |"
    )


def added(found: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Return what the gateway adds, what affinity gains, and the first error of each way."""
    direct, ours, without = (found[way] for way in WAYS)
    lost = 1 - middle(ours, "tokens_per_s") / middle(direct, "tokens_per_s")
    more_ms = middle(ours, "outside_ms") - middle(direct, "outside_ms")
    gain = middle(ours, "tokens_per_s") / middle(without, "tokens_per_s")
    hits, before = middle(ours, "hits"), middle(without, "hits")
    return [
        f"the gateway adds {more_ms:.1f} ms to a turn (mean, outside of engines) and takes {lost:.1%} of the tokens/s",
        f"affinity: {gain:.2f} x the tokens/s, prefix hits {hits:.1%} instead of {before:.1%}",
        f"sessions were opened and closed in {middle(ours, 'opening_s'):.2f} s",
        *(f"{way}: {each.first_error}" for way, rounds in found.items() for each in rounds if each.first_error),
    ]


def middle(rounds: Sequence[Figures], name: str) -> float:
    return float(median(getattr(each, name) for each in rounds))


def devices(bench: Bench) -> str:
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if bench.on_gpu else "CPU"


def said(text: str) -> None:
    """Say on stderr how far it is."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
