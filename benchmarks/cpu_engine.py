"""What engines on CPU compute in their own way, beside what PyTorch takes, for `docs/performance.md`.

python benchmarks/cpu_engine.py --threads 2
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from rljob_trainer.engines.command import CPU_SITE

sys.path.insert(0, str(CPU_SITE))
import rljob_sglang_matrices  # type: ignore[import-not-found]

SEQUENCES, HIDDEN, INNER, WORDS = 256, 576, 1536, 49_152
"""of SmolLM2-135M, in a rollout of the quickstart"""
ROUNDS = 15


def main() -> None:
    """Measure each pair in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print("| | PyTorch | engine on CPU |\n|---|---|---|")
    for inner in (INNER, WORDS):
        print(product(inner))
    probs = torch.softmax(torch.randn(SEQUENCES, WORDS), -1)
    theirs, ours = medians(lambda: torch.multinomial(probs, 1), lambda: rljob_sglang_matrices.sample(None, probs))
    print(f"| {SEQUENCES} tokens of {WORDS} words [s] | {theirs:.3f} | {ours:.3f} |")


def product(inner: int) -> str:
    """Return the row of one product."""
    x, weight = torch.randn(SEQUENCES, HIDDEN), torch.randn(inner, HIDDEN)
    work = 2e-9 * SEQUENCES * HIDDEN * inner
    theirs, ours = medians(lambda: x @ weight.T, lambda: rljob_sglang_matrices.product(x, weight))
    return f"| {SEQUENCES} x {HIDDEN} by {HIDDEN} x {inner} [GFLOP/s] | {work / theirs:.0f} | {work / ours:.0f} |"


def medians(*ways: Callable[[], object]) -> list[float]:
    """Return the median time of each way [s]; they take turns."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for way, taken in zip(ways, times, strict=True):
            began = time.perf_counter()
            way()
            taken.append(time.perf_counter() - began)
    return [median(taken) for taken in times]


if __name__ == "__main__":
    main()
