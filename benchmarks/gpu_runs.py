"""Rollouts beside the engine alone, publications, lost processes, on one GPU or two, for `docs/gpu-measurements.md`.

    python3 benchmarks/gpu_runs.py --rows decode-64 publish-4B-Ipc
    python3 benchmarks/gpu_runs.py --rows apart-0.6B waits ahead lost-engine      with two GPUs

Each row runs in a process of its own, with random weights of Qwen3's shapes. Rows that have a file in OUT already are
not repeated, so an interrupted benchmark goes on where it was. `--device cpu --tiny` tries them without a GPU.

`publish-...` is a colocated `rljob run` with so little work that a step is all handing over: 8 responses of one token,
an optimizer step, a publication. So `publish` and the next `rollout` are the time from the end of the step to the first
tokens of the new version. `publish-...-Fp8` and `-Int4` are the same with quantised engines, and 64 tokens in a
response: `first step` has the mean |engine - learner| of their log-probabilities. `apart-...` is the same with learner
and engine on a GPU each, `gathered-...` with a learner on two GPUs, from which a publication gathers the weights.

`cycles` is a hundred steps of `publish-0.6B-Ipc`, for their memory. `whole` is a step of common size, colocated: 256
responses of 256 tokens. `waits` and `ahead` are one manifest with and without `rollout.async`. `lost-...` kills an
engine, the driver or a rank of the learner in a colocated run on one GPU or two, and reports what followed;
`lost-publishing` kills an engine in the middle of a publication, three times. `apart-lost-...` does it where engines
have GPUs of their own, as many as the learner: one each, or two.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import rollout
import torch
import yaml
from learner_gpu import QWEN3, SHAPES, TINY, write_checkpoint
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_api.reading.manifest import load
from rljob_trainer.reporting.events import FILE_NAME, read_events
from rljob_trainer.reporting.records import EngineRecord, FirstStepRecord, ReadyRecord, RunRecord, StepRecord
from rljob_trainer.samples import Prompt

Json = dict[str, Any]

WARM_UP = 3
"""steps that do not count: kernels are chosen and memory is taken"""
STEPS = 14
FILES = "/dev/shm/rljob-bench"
TRANSPORTS = ("Disk", "Ipc")
KINDS = ("Fp8", "Int4")
SIZES: dict[str, Json] = SHAPES | {
    "experts": QWEN3
    | {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16}
    | {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 768, "tie_word_embeddings": False}
}
"""the last has 1.3 billion parameters, most of them in experts"""
SMALL: Json = {name: size for name, size in TINY.items() if name != "tie_word_embeddings"} | {
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
}
"""with widths that quantised weights need"""
PROMPT_TOKENS = 64
ROUNDS = 4
IN_FLIGHT = (64, 256, 512)
LOST_AFTER = 6
"""steps before a process is killed, and after it is replaced"""
VICTIMS = {"engine": "sglang::sched", "driver": "rljob_trainer.driver", "rank": "ray::RankHost"}
TIMED = re.compile(r"^(\S+ \S+?),?\d* .*action=(\w+) .*?seconds=([\d.]+)(.*)$", re.MULTILINE)


def even(question: str, response: str, label: str, metadata: object) -> float:
    """Return a reward that samples of one prompt differ in: every token of the random models is a number."""
    return float(sum(map(ord, response)) % 2)


def write_tokenizer(directory: Path, size: int) -> None:
    """Write a tokenizer of so many tokens, which are numbers."""
    words = Tokenizer(models.WordLevel({str(i): i for i in range(size)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="1", unk_token="0")
    fast.save_pretrained(directory)


class Bench:
    """What all rows share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out.resolve()
        self.on_gpu: bool = arguments.device == "cuda"
        self.tiny: bool = arguments.tiny

    def model(self, size: str) -> Path:
        """Return a random model of this size, with a tokenizer whose tokens are numbers."""
        directory = self.out / f"model-{size}"
        shape = {**SIZES[size], **SMALL} if self.tiny else SIZES[size]
        if not (directory / "tokenizer.json").exists():
            write_checkpoint(directory, shape, "cuda" if self.on_gpu else "cpu")
            write_tokenizer(directory, shape["vocab_size"])
        return directory

    def job(self, row: str, model: Path, **changes: Any) -> Json:
        """Return a manifest; `changes` are merged into its sections."""
        name = row.lower().replace(".", "-")
        questions = self.out / "numbers.jsonl"
        rows = ({"question": f"{number % 97} {number}", "answer": "1"} for number in range(512))
        questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec: Json = {
            "model": {"checkpoint": str(model)},
            "data": {"train": {"jsonl": str(questions)}, "promptTemplate": "{question}", "chatTemplate": False},
            "reward": {"kind": "Python", "function": "gpu_runs:even"},
            "rollout": {
                "promptsPerStep": 1,
                "samplesPerPrompt": 8,
                "contextLength": 256,
                "memoryFraction": 0.25,
                "sampling": {"maxNewTokens": 1},
            },
            "training": {"steps": 1000, "optimizer": {"learningRate": 1e-6}},
            "checkpoint": {"directory": str(self.out / name), "interval": 10_000, "keep": 1},
            "runtime": {"device": "Gpu", "tensorboard": False},
        }
        for section, change in changes.items():
            spec[section] = {**spec.get(section, {}), **change} if isinstance(change, dict) else change
        if not self.on_gpu:
            spec["runtime"]["device"] = "Cpu"
            spec["rollout"].pop("memoryFraction", None)
            spec["training"]["precision"] = "fp32"
        return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}

    def run(self, job: Json, steps: int, kills: Sequence["Kill"] = ()) -> Path:
        """Do so many steps of a job from its beginning, and as many after each kill; return its directory.

        It is killed then: to save a checkpoint of 4B takes longer than all of its steps. Raises CalledProcessError if
        the run ends.
        """
        directory = Path(job["spec"]["checkpoint"]["directory"])
        shutil.rmtree(directory, ignore_errors=True)
        path = self.out / f"{job['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(job))
        here = str(Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        with (self.out / f"{job['metadata']['name']}.log").open("wb") as log:
            command = [sys.executable, "-m", "rljob_cli.main", "run", str(path)]
            running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            supervisor = psutil.Process(running.pid)
            since = 0.0
            for kill in (*kills, None):
                while done(directory, since) < steps:
                    if (code := running.poll()) is not None:
                        raise subprocess.CalledProcessError(code, command)
                    time.sleep(0.05)
                if kill is not None:
                    kill.wait(directory)
                    since = kill.time = time.time()
                    named(kill.victim).kill()
            family = [supervisor, *supervisor.children(recursive=True)]
            for process in family:
                process.kill()
            psutil.wait_procs(family, timeout=30)
        return directory


@dataclass
class Kill:
    """The death of a process."""

    victim: str
    """words of its command line"""
    wait: Callable[[Path], None] = lambda directory: None
    """returns when it is to die"""
    time: float = 0.0
    """when it died"""


def in_publication(directory: Path) -> None:
    """Wait for the middle of the next publication, which ends a step, by the length of the steps before."""
    events = directory / FILE_NAME
    before = [each for each in read_events(events) if isinstance(each, StepRecord)][-6:]
    length = median(later.time - earlier.time for earlier, later in pairwise(before))
    half = median(each.phase_seconds["publish"] for each in before) / 2
    size = events.stat().st_size
    while events.stat().st_size == size:
        time.sleep(0.002)
    time.sleep(length - half)


def named(words: str) -> psutil.Process:
    """Return the first process whose command line has these words; nothing else runs on the machine."""
    return next(each for each in psutil.process_iter(["cmdline"]) if words in " ".join(each.info["cmdline"] or ()))


def done(directory: Path, since: float = 0.0) -> int:
    """Return how many steps a run has reported since then, and since its engines are complete."""
    events = directory / FILE_NAME
    records = [each for each in read_events(events) if each.time >= since] if events.exists() else []
    failures = {(each.engine, each.time): each for each in records if isinstance(each, EngineRecord)}
    if any(each.return_seconds is None for each in failures.values()):
        return 0
    whole = max((each.time + (each.return_seconds or 0.0) for each in failures.values()), default=since)
    return sum(isinstance(each, StepRecord) and each.time >= whole for each in records)


def decode(bench: Bench, in_flight: int) -> Json:
    """Measure a rollout of so many responses beside the engine alone, both in turns on one engine."""
    samples, tokens = 8, 8 if bench.tiny else 256
    model = bench.model("0.6B")
    change: Json = {"promptsPerStep": in_flight // samples, "samplesPerPrompt": samples}
    change |= {"contextLength": PROMPT_TOKENS + tokens, "memoryFraction": 0.6, "sampling": {"maxNewTokens": tokens}}
    job = load(yaml.safe_dump(bench.job(f"decode-{in_flight}", model, rollout=change, placement="Disaggregated")))
    vocabulary = 500 if bench.tiny else 150_000
    prompts = [
        Prompt(
            uid=f"0:{row}",
            question="",
            text="",
            tokens_T=tuple((row * 7919 + i * 104729) % vocabulary + 2 for i in range(PROMPT_TOKENS)),
            label="",
            metadata={},
        )
        for row in range(in_flight // samples)
    ]
    directory = bench.out / f"decode-{in_flight}"
    directory.mkdir(exist_ok=True)
    found = rollout.compare(job, model, prompts, 1 if bench.tiny else ROUNDS, 4, directory)
    return {
        "ours [tokens/s]": found.ours,
        "engine alone [tokens/s]": found.plain,
        "ratio": found.ours / found.plain,
        "rounds": found.rounds,
    }


def apart(bench: Bench, name: str, size: str, ranks: int) -> Json:
    """Measure the steps of a run that does little but hand over to an engine on a GPU of its own.

    The learner has so many tensor-parallel ranks, from which the weights are gathered.
    """
    training: Json = {"gpusPerNode": ranks, "tensorParallel": ranks}
    job = bench.job(name, bench.model(size), placement="Disaggregated", training=training)
    return figures(bench.run(job, STEPS))


def ahead(bench: Bench, name: str, settings: Json | None) -> Json:
    """Measure steps whose rollout and training take long enough to overlap, on a GPU each."""
    tokens = 8 if bench.tiny else 256
    change: Json = {"promptsPerStep": 4 if bench.tiny else 32, "contextLength": PROMPT_TOKENS + tokens}
    change |= {"sampling": {"maxNewTokens": tokens}, "memoryFraction": 0.6}
    change |= {"async": settings} if settings is not None else {}
    training: Json = {"stepsPerRollout": 2}
    job = bench.job(name, bench.model("0.6B"), rollout=change, placement="Disaggregated", training=training)
    return figures(bench.run(job, WARM_UP + 20))


def whole(bench: Bench) -> Json:
    """Measure the steps of a colocated run: 32 prompts, 8 responses of 256 tokens to each, one optimizer step."""
    tokens = 8 if bench.tiny else 256
    change: Json = {"promptsPerStep": 4 if bench.tiny else 32, "contextLength": PROMPT_TOKENS + tokens}
    change |= {"sampling": {"maxNewTokens": tokens}, "memoryFraction": 0.5}
    return figures(bench.run(bench.job("whole", bench.model("0.6B"), rollout=change), STEPS))


def lost(bench: Bench, name: str, kills: Sequence[Kill], tokens: int = 64, is_apart: bool = False) -> Json:
    """Kill processes of a run with an engine and a rank on each GPU, or on GPUs of their own; return what followed."""
    tokens = 8 if bench.tiny else tokens
    gpus = torch.cuda.device_count() if bench.on_gpu else 4
    ranks = min(2, gpus // 2 if is_apart else gpus)
    rollout_: Json = {"promptsPerStep": 4, "engines": ranks, "contextLength": PROMPT_TOKENS + tokens}
    rollout_ |= {"sampling": {"maxNewTokens": tokens}}
    directory = Path(FILES) / name
    job = bench.job(
        name,
        bench.model("0.6B"),
        rollout=rollout_,
        placement="Disaggregated" if is_apart else "Colocated",
        training={"gpusPerNode": ranks},
        checkpoint={
            "directory": str(directory),
            "interval": 10_000 if kills[0].victim == VICTIMS["engine"] else LOST_AFTER - 1,
            "keep": 1,
        },
        weightSync={"transport": "Ipc"} if bench.on_gpu and not is_apart else {},
    )
    try:
        bench.run(job, LOST_AFTER, kills)
        return {"kills": [each.time - kills[0].time for each in kills]} | followed(directory, kills[0].time)
    finally:
        shutil.copytree(directory / "logs", bench.out / f"{name}-logs", dirs_exist_ok=True)
        shutil.rmtree(FILES, ignore_errors=True)


def followed(directory: Path, killed: float) -> Json:
    """Return what a run reported after a kill, in seconds after it."""
    records = [each for each in read_events(directory / FILE_NAME) if each.time >= killed]
    logs = "".join(path.read_text(errors="replace") for path in sorted(directory.glob("logs/driver*")))
    return {
        "left behind": [line for line in logs.splitlines() if "action=quarantine" in line],
        "engines": [each.model_dump() for each in records if isinstance(each, EngineRecord)],
        "started again": [
            {"after": each.time - killed, "from step": each.step, "lost steps": each.lost_steps}
            for each in records
            if isinstance(each, RunRecord)
        ],
        "ready": [
            {"after": each.time - killed, "phases": dict(each.phase_seconds)}
            for each in records
            if isinstance(each, ReadyRecord)
        ],
        "steps": [
            {"after": each.time - killed, "step": each.step, "phases": dict(each.phase_seconds)}
            for each in records
            if isinstance(each, StepRecord)
        ],
    }


def publish(bench: Bench, size: str, transport: str, steps: int = STEPS, kind: str | None = None) -> Json:
    """Measure the steps of a run that does little but hand over; the files of `Disk` are in memory.

    With a `kind` engines have weights in this format, and responses of many tokens, whose probabilities are compared.
    """
    sync: Json = {"transport": transport} | ({"directory": FILES} if transport == "Disk" else {})
    changes: Json = {}
    if kind is not None:
        changes = {
            "rollout": {"quantization": kind, "sampling": {"maxNewTokens": 64}},
            "algorithm": {"importanceSampling": {"kind": "Truncate"}},
        }
    job = bench.job("-".join(filter(None, ("publish", size, transport, kind))), bench.model(size), **changes)
    job["spec"]["weightSync"] = sync
    if kind is not None:
        job["spec"]["training"]["precision"] = "bf16"
    try:
        return figures(bench.run(job, steps))
    finally:
        shutil.rmtree(FILES, ignore_errors=True)  # a killed run leaves them


def figures(directory: Path) -> Json:
    """Return what a run came to. Seconds; of steps the median, after those that warm up."""
    records = list(read_events(directory / FILE_NAME))
    steps = [each for each in records if isinstance(each, StepRecord)]
    counted = steps[WARM_UP:]
    phases = sorted({phase for step in counted for phase in step.phase_seconds})
    found: Json = {
        "steps": len(steps),
        "start": [dict(each.phase_seconds) for each in records if isinstance(each, ReadyRecord)],
        "phases": {name: median(step.phase_seconds.get(name, 0.0) for step in counted) for name in phases},
        "publish": [round(step.phase_seconds["publish"], 4) for step in counted],
        "step": median(sum(step.phase_seconds.values()) for step in counted),
        "tokens per step": median(step.rollout_tokens for step in counted),
        "timed": timed(directory),
        "mismatch": [step.logprob_mismatch for step in steps],
        "reward": [step.reward_mean for step in steps],
        "GPU memory [MiB]": [
            max(use.memory_bytes or 0 for use in step.gpus.values()) >> 20 for step in steps if step.gpus
        ],
        "staleness": [step.staleness for step in steps],
        "sums": [round(sum(step.phase_seconds.values()), 4) for step in counted],
        "first step": {
            check.name: (check.value, check.limit)
            for each in records
            if isinstance(each, FirstStepRecord)
            for check in each.checks
        },
    }
    return found


def timed(directory: Path) -> Json:
    """Return what the driver's log says of the time of single actions: medians, without the first ones."""
    text = "".join(path.read_text(errors="replace") for path in sorted(directory.glob("logs/driver*")))
    seconds: dict[str, list[float]] = {}
    for _, action, took, rest in TIMED.findall(text):
        seconds.setdefault(action, []).append(float(took))
        for part, value in re.findall(r"(\w+)=([\d.]+)", rest) if action == "publish" else ():
            seconds.setdefault(f"publish {part}", []).append(float(value))
    return {name: median(values[WARM_UP:] or values) for name, values in seconds.items()}


ROWS: dict[str, Callable[[Bench], Json]] = {
    **{f"decode-{number}": partial(decode, in_flight=number) for number in IN_FLIGHT},
    **{f"publish-{size}-{how}": partial(publish, size=size, transport=how) for size in SHAPES for how in TRANSPORTS},
    **{
        f"publish-{size}-{how}-{kind}": partial(publish, size=size, transport=how, kind=kind)
        for size in ("0.6B", "experts")
        for how in TRANSPORTS
        for kind in KINDS
    },
    **{f"apart-{size}": partial(apart, name=f"apart-{size}", size=size, ranks=1) for size in SHAPES},
    **{f"gathered-{size}": partial(apart, name=f"gathered-{size}", size=size, ranks=2) for size in SHAPES},
    "whole": whole,
    "waits": partial(ahead, name="waits", settings=None),
    "ahead": partial(ahead, name="ahead", settings={"maxStaleness": 1}),
    "cycles": partial(publish, size="0.6B", transport="Ipc", steps=WARM_UP + 100),
    **{f"lost-{name}": partial(lost, name=f"lost-{name}", kills=[Kill(words)]) for name, words in VICTIMS.items()},
    **{
        f"apart-lost-{name}": partial(lost, name=f"apart-lost-{name}", kills=[Kill(words)], is_apart=True)
        for name, words in VICTIMS.items()
    },
    "lost-publishing": partial(
        lost, name="lost-publishing", kills=[Kill(VICTIMS["engine"], in_publication) for _ in range(3)], tokens=1
    ),
}
SEVERAL_GPUS = {"apart": 2, "waits": 2, "ahead": 2, "gathered": 3}
"""how many a row needs, by the beginning of its name"""


def possible() -> list[str]:
    """Return the rows that have enough GPUs."""
    gpus = max(torch.cuda.device_count(), 1)
    return [name for name in ROWS if SEVERAL_GPUS.get(name.partition("-")[0], 1) <= gpus]


def main() -> None:
    """Measure what is missing, and print all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=possible())
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a two-layer model, to try the benchmark")
    parser.add_argument("--only", choices=ROWS, help=argparse.SUPPRESS)  # one row, in a process of its own
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        print(json.dumps(ROWS[arguments.only](Bench(arguments))))
        return
    for row in arguments.rows:
        result = arguments.out / f"{row}.json"
        if result.exists():
            continue
        began = datetime.now().isoformat(timespec="seconds")
        ended = subprocess.run([sys.executable, *sys.argv, "--only", row], stdout=subprocess.PIPE, text=True)
        if ended.returncode:  # the other rows are still worth having
            print(f"{row}: exit code {ended.returncode}", file=sys.stderr)
            continue
        result.write_text(json.dumps({"began": began} | json.loads(ended.stdout.splitlines()[-1]), indent=1))
    for row in ROWS:
        if (arguments.out / f"{row}.json").exists():
            print(row, (arguments.out / f"{row}.json").read_text())


if __name__ == "__main__":
    main()
