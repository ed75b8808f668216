"""What we compute in our own way on a CPU, beside what PyTorch takes, for `docs/performance.md`.

python benchmarks/cpu.py --threads 2
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from rljob_trainer.engines.command import CPU_SITE
from rljob_trainer.learners.rank.replacements import matrices

sys.path.insert(0, str(CPU_SITE))
import rljob_sglang_matrices

SEQUENCES, TOKENS, HIDDEN, INNER, WORDS = 256, 1024, 576, 1536, 49_152
"""of SmolLM2-135M: sequences of a rollout in the quickstart, tokens of a micro-batch"""
ROUNDS = 15

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure each pair in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print("| | PyTorch | ours |\n|---|---|---|")
    for width in (INNER, WORDS):
        x, weight = torch.randn(SEQUENCES, HIDDEN), torch.randn(width, HIDDEN)
        print(product(f"engine, {width:,} columns", x, weight.T, lambda x, w: rljob_sglang_matrices.product(x, w.T)))
    for width in (INNER, WORDS):
        x, weight, grad = torch.randn(TOKENS, HIDDEN), torch.randn(width, HIDDEN), torch.randn(TOKENS, width)
        for name, left, right in (
            ("forward", x, weight.T),
            ("gradient of inputs", grad, weight),
            ("gradient of weights", grad.T, x),
        ):
            print(product(f"learner, {width:,} columns, {name}", left, right, matrices.product))
    probs = torch.softmax(torch.randn(SEQUENCES, WORDS), -1)
    theirs, ours = medians(lambda: torch.multinomial(probs, 1), lambda: rljob_sglang_matrices.sample(None, probs))
    print(f"| engine, {SEQUENCES} tokens of {WORDS:,} words [s] | {theirs:.3f} | {ours:.3f} |")


def product(name: str, left: torch.Tensor, right: torch.Tensor, by_one_dnn: Product) -> str:
    """Return the row of one product."""
    work = 2e-9 * left.numel() * right.shape[1]
    theirs, ours = medians(lambda: left @ right, lambda: by_one_dnn(left, right))
    return f"| {name} [GFLOP/s] | {work / theirs:.0f} | {work / ours:.0f} |"


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
