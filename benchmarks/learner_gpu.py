"""The learner's optimizer step on one GPU beside its rivals, for `docs/gpu.md`: `make bench-gpu`.

Each row runs in a process of its own, one after the other, with random weights of Qwen3-0.6B's shape and the same
samples. Rows that `OUT/learner.json` has already are not repeated, so an interrupted run goes on where it was.

`fused` is the learner as it runs on GPUs. `unfused` is the same without `learners/query_key.py` and
`learners/token_statistics.py`. `transformers` is what a careful person writes: micro-batches sorted by length and
padded, logits of response tokens only, fused AdamW. MFU = (6 N + 6 L H D s) x tokens/s / peak, with N parameters (tied
embedding once), L layers, H heads of size D, and s the mean length as a token sees it.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rljob_trainer.batches.packing import TrainingSequence, pack
from rljob_trainer.learners import logprobs, model
from rljob_trainer.learners.config import LearnerConfig, OptimizerSettings
from rljob_trainer.learners.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports

Json = dict[str, Any]
Step = Callable[[], float]

PEAK_FLOPS = 790e12
"""what a large bf16 product reaches on one H100 or H200"""
LEARNING_RATE = 1e-6
MICRO_BATCH_TOKENS = 16384
WARM_UP, MEASURED = 3, 8
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}


@dataclass(frozen=True)
class Load:
    """Samples of one optimizer step."""

    lengths: tuple[int, ...]

    def samples(self, vocabulary: int) -> list[TrainingSequence]:
        """Return random samples; a quarter of each is its prompt, and no two prompts begin alike."""
        rng = np.random.default_rng(0)
        responses = sum(length - length // 4 for length in self.lengths)
        samples = []
        for length in self.lengths:
            tokens = rng.integers(0, vocabulary, length).tolist()
            logprobs = (-12 + rng.standard_normal(length - length // 4)).tolist()
            advantage = float(rng.standard_normal())
            samples.append(TrainingSequence(tuple(tokens), length // 4, advantage, tuple(logprobs), 1 / responses))
        return samples


def loads(scale: int) -> dict[str, Load]:
    """Return the loads; `scale` divides their lengths."""
    mixed = np.random.default_rng(1).lognormal(6.7, 0.7, 32).clip(64, 8192).astype(int)
    return {
        "mixed": Load(tuple(max(8, int(length) // scale) for length in mixed)),
        "long": Load((8192 // scale,) * 4),
    }


def fused(arguments: argparse.Namespace, samples: Sequence[TrainingSequence]) -> Step:
    """Return a step of the learner as it is."""
    host = "127.0.0.1"
    config = LearnerConfig(
        checkpoint_dir=arguments.out / "model",
        optimizer=OptimizerSettings(learning_rate=LEARNING_RATE, total_steps=1000),
        precision="bf16",
        device=arguments.device,
        num_threads=2,
    )
    learner = LearnerRank(config, rank=0, world_size=1, master_address=host, master_port=free_ports(host)[0])
    (batches,) = pack(samples, dp_size=1, max_tokens=MICRO_BATCH_TOKENS)
    return lambda: learner.train(batches).loss or 0.0


def unfused(arguments: argparse.Namespace, samples: Sequence[TrainingSequence]) -> Step:
    """Return a step of the learner with the layers and the output layer that it has on CPUs."""
    layer_spec = model._layer_spec
    patch.object(model, "_layer_spec", lambda config, _device: layer_spec(config, "cpu")).start()
    patch.object(
        logprobs, "_head", lambda _hidden, _shard: logprobs._Head
    ).start()  # this process measures nothing else
    return fused(arguments, samples)


def transformers(arguments: argparse.Namespace, samples: Sequence[TrainingSequence]) -> Step:
    """Return a step with Hugging Face's model, in bf16 throughout."""
    device = arguments.device
    policy = AutoModelForCausalLM.from_pretrained(arguments.out / "model", dtype=torch.bfloat16).to(device)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    chunks: list[list[TrainingSequence]] = [[]]
    for sample in sorted(samples, key=lambda sample: len(sample.tokens)):
        if len(sample.tokens) * (len(chunks[-1]) + 1) > MICRO_BATCH_TOKENS and chunks[-1]:
            chunks.append([])
        chunks[-1].append(sample)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for chunk in chunks:
            loss = _padded_loss(policy, chunk, device)
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0, foreach=True)
        optimizer.step()
        return float(sum(losses))

    return step


def _padded_loss(policy: Any, chunk: Sequence[TrainingSequence], device: str) -> torch.Tensor:
    longest = max(len(sample.tokens) for sample in chunk)
    tokens = torch.tensor([[*sample.tokens, *[0] * (longest - len(sample.tokens))] for sample in chunk], device=device)
    hidden = policy.model(input_ids=tokens).last_hidden_state
    rows = [row for row, sample in enumerate(chunk) for _ in sample.logprobs]
    columns = [column for sample in chunk for column in range(sample.prompt_length - 1, len(sample.tokens) - 1)]
    row, column = torch.tensor(rows, device=device), torch.tensor(columns, device=device)
    logits = policy.lm_head(hidden[row, column]).float()
    logprobs = -torch.nn.functional.cross_entropy(logits, tokens[row, column + 1], reduction="none")
    weights = torch.tensor([each.weight * each.advantage for each in chunk for _ in each.logprobs], device=device)
    return -(weights * torch.exp(logprobs - logprobs.detach())).sum()


ROWS: dict[str, Callable[[argparse.Namespace, Sequence[TrainingSequence]], Step]] = {
    "fused": fused,
    "unfused": unfused,
    "transformers": transformers,
}


def measure(arguments: argparse.Namespace, row: str, load: Load) -> Json:
    """Return the figures of one row, in this process."""
    shape = TINY if arguments.tiny else SHAPE
    samples = load.samples(shape["vocab_size"])
    step = ROWS[row](arguments, samples)
    on_gpu = arguments.device == "cuda"
    first_loss = step()
    seconds = []
    for _ in range(WARM_UP + MEASURED):
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    tokens = sum(load.lengths)
    rate = tokens / median(seconds[WARM_UP:])
    spread = (max(seconds[WARM_UP:]) - min(seconds[WARM_UP:])) / median(seconds[WARM_UP:])
    return {
        "ms": 1000 * median(seconds[WARM_UP:]),
        "spread": spread,
        "tokens per second": rate,
        "MFU": rate * _flops_per_token(arguments.out / "model", shape, load) / PEAK_FLOPS,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "first loss": first_loss,
    }


def _flops_per_token(checkpoint: Path, shape: Json, load: Load) -> float:
    parameters = json.loads((checkpoint / "parameters.json").read_text())
    seen = sum(length**2 for length in load.lengths) / sum(load.lengths)
    return float(
        6 * parameters + 6 * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"] * seen
    )


def write_checkpoint(directory: Path, shape: Json) -> None:
    """Write random weights of the shape, once."""
    if not (directory / "parameters.json").exists():
        torch.manual_seed(0)
        policy = AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=torch.bfloat16)
        policy.save_pretrained(directory)
        (directory / "parameters.json").write_text(json.dumps(sum(each.numel() for each in policy.parameters())))


def table(figures: Json) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| load | row | ms | spread | tokens/s | MFU | peak GiB | first loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in figures.items():
        peak = "" if row["peak GiB"] is None else f"{row['peak GiB']:.1f}"
        cells = [
            *name.split("/"),
            f"{row['ms']:.1f}",
            f"{row['spread']:.1%}",
            f"{row['tokens per second']:,.0f}",
            f"{row['MFU']:.1%}",
            peak,
            f"{row['first loss']:.6f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--loads", nargs="+", choices=loads(1), default=list(loads(1)))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two layers and short samples, to try the benchmark")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one row, in a process of its own
    arguments = parser.parse_args()
    known = loads(64 if arguments.tiny else 1)
    if arguments.only:
        load, row = arguments.only.split("/")
        print(json.dumps(measure(arguments, row, known[load])))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_checkpoint(arguments.out / "model", TINY if arguments.tiny else SHAPE)
    results = arguments.out / "learner.json"
    figures = json.loads(results.read_text()) if results.exists() else {}
    for load, row in itertools.product(arguments.loads, arguments.rows):
        name = f"{load}/{row}"
        if name not in figures:
            command = [sys.executable, *sys.argv, "--only", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_environment())
            figures[name] = json.loads(done.stdout.splitlines()[-1])
            results.write_text(json.dumps(figures, indent=2))
    print(table(figures))


def _environment() -> dict[str, str]:
    """Let a row use expandable segments: lengths differ from micro-batch to micro-batch."""
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ}


if __name__ == "__main__":
    main()
