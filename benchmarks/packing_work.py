"""How long ranks wait for each other in a step, packed by tokens and packed by work: simulated, from FLOPs alone.

    PYTHONPATH=crds:trainer python benchmarks/packing_work.py

A row is the mean of several optimizer steps: groups of 8 samples of one prompt, log-normal response lengths (sigma 1)
cut off at the longest, micro-batches of at most the longest sequence. The spread is the work on the longest way through
the step over the mean work of a rank: 1 means that no rank waits. FLOPs stand for time: what a micro-batch costs
besides them, and how well it fills a GPU, is not in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from rljob_api.sizing.flops import Work
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import shape
from rljob_trainer.batches.shares import Meeting, Share, Sizes, shared_out, span

MODELS = ("Qwen/Qwen3-4B", "Qwen/Qwen3-30B-A3B")
LENGTHS = ((8_192, 2_048), (32_768, 4_096))
"""longest response, median before the cut [tokens]"""
PROMPT, GROUP, RANKS, ROLLOUTS = 512, 8, 8, 10
SAMPLES = (64, 512)
"""of an optimizer step"""


def rollout(work: Work, samples: int, longest: int, median: int, seed: int) -> Sizes:
    """Return the sequences of a step."""
    random = np.random.default_rng(seed)
    drawn = np.ceil(random.lognormal(np.log(median), 1.0, samples))
    responses = np.minimum(longest, drawn).astype(int).tolist()
    shared = [0 if number % GROUP == 0 else PROMPT for number in range(samples)]
    return Sizes(
        tokens=[PROMPT + length for length in responses],
        prompts=shared,
        work=[work.of_sequence(PROMPT + length, length) for length in responses],
        repeated=[work.token * length for length in shared],
    )


def spread(sizes: Sizes, shares: Sequence[Share], in_step: bool) -> float:
    """Return the longest way through a step over the mean work of a rank."""
    total = sum(sizes.work_of(numbers) for share in shares for numbers in share)
    return span(sizes, shares, in_step) * len(shares) / total


def rows() -> Iterator[str]:
    yield "model                longest  samples  ranks meet            by tokens  by work"
    for model in MODELS:
        work = Work.of(shape(ON_THE_HUB[model]))
        for longest, median in LENGTHS:
            for samples in SAMPLES:
                for in_step in (False, True):
                    meeting = Meeting(RANKS, longest + PROMPT, in_step, 1)
                    before, after = [], []
                    for seed in range(ROLLOUTS):
                        sizes = rollout(work, samples, longest, median, seed)
                        even = shared_out(replace(sizes, work=(), repeated=()), meeting)
                        before.append(spread(sizes, even, in_step))
                        after.append(spread(sizes, shared_out(sizes, meeting), in_step))
                    where = "in each micro-batch" if in_step else "at the step's end"
                    yield f"{model:20} {longest:7} {samples:8}  {where:20} {fmean(before):10.2f} {fmean(after):8.2f}"


if __name__ == "__main__":
    for row in rows():
        print(row)
