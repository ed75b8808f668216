"""Samples of mixed lengths on one rank and split over four: peak memory of each rank, speed, loss and gradient norm.

All ranks share the machine's cores, so tokens per second say what splitting costs, not what more GPUs gain. CPU
seconds of all ranks together say the same without the influence of other programs.
"""

import multiprocessing
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rljob_api.sections import Optimizer
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports

LENGTHS = (1024, 700, 513, 256, 127, 31, 9, 2)
VOCABULARY = 1024
STEPS = 2
"""the first one warms up"""


@dataclass(frozen=True)
class Figures:
    """What one rank measured."""

    losses: list[float]
    grad_norms: list[float]
    seconds: float
    """of a step, the median"""
    cpu_seconds: float
    """of this rank in a step, the median"""
    before_bytes: int
    """peak memory until the first step"""
    peak_bytes: int


def main() -> None:
    tokens = sum(LENGTHS)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = model(Path(folder))
        print(
            "| ranks | peak of a rank [MiB] | of these, steps [MiB] | tokens/s | CPU s a step | loss | gradient norm |"
        )
        for ranks in (1, 4):
            found = on_ranks(checkpoint, ranks)
            peak = max(f.peak_bytes for f in found) / 2**20
            steps = max(f.peak_bytes - f.before_bytes for f in found) / 2**20
            rate, cpu = tokens / max(f.seconds for f in found), sum(f.cpu_seconds for f in found)
            last = f"{found[0].losses[-1]:.7f} | {found[0].grad_norms[-1]:.6f}"
            print(f"| {ranks} | {peak:.0f} | {steps:.0f} | {rate:.0f} | {cpu:.1f} | {last} |", flush=True)


def model(directory: Path) -> Path:
    """Write a small random Qwen3 whose activations are most of what a step needs."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def samples(seed: int) -> list[TrainingSequence]:
    """Return one sample of each length; half of it is the prompt."""
    random = np.random.default_rng(seed)
    trained = sum(length - length // 2 for length in LENGTHS)
    return [
        TrainingSequence(
            tokens=tuple(random.integers(0, VOCABULARY, length).tolist()),
            prompt_length=length // 2,
            advantage=float(random.standard_normal()),
            logprobs=(-7.0,) * (length - length // 2),
            weight=1 / trained,
        )
        for length in LENGTHS
    ]


def on_ranks(checkpoint: Path, ranks: int) -> list[Figures]:
    """Return what each of so many context-parallel ranks measured."""
    port = free_ports("127.0.0.1")[0]
    with multiprocessing.get_context("spawn").Pool(ranks) as pool:
        return pool.starmap(measure, [(checkpoint, rank, ranks, port) for rank in range(ranks)], chunksize=1)


def measure(checkpoint: Path, rank: int, ranks: int, port: int) -> Figures:
    """Take the steps in this process."""
    config = LearnerConfig(
        checkpoint, Optimizer(learning_rate=1e-4), total_steps=100, layout=ParallelLayout(context=ranks)
    )
    learner = LearnerRank(config, rank, ranks, "127.0.0.1", port)
    before, losses, norms, seconds, cpu = peak(), [], [], [], []
    for seed in range(STEPS):
        (batches,) = pack(samples(seed), Packing(1, sum(LENGTHS)))
        wall, used = time.perf_counter(), time.process_time()
        step = learner.train(batches)
        seconds.append(time.perf_counter() - wall)
        cpu.append(time.process_time() - used)
        losses.append(step.loss or 0.0)
        norms.append(step.grad_norm or 0.0)
    return Figures(losses, norms, median(seconds[1:]), median(cpu[1:]), before, peak())


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


if __name__ == "__main__":
    main()
