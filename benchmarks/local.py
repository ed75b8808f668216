"""What our loop costs on this machine, for `docs/performance.md`: `make bench`.

Each pair is measured in turns in one run, on the quickstart's model, prompts and batch: tokens/s of a rollout through
us against the engine alone, and of an optimizer step against the same model in plain PyTorch.
"""

import argparse
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import learner
import rollout

from rljob_api.reading.manifest import load
from rljob_trainer.batches.packing import TrainingSequence
from rljob_trainer.data.dataset import dataset
from rljob_trainer.data.packages import cache_directory, checkpoint
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.samples import Group

QUICKSTART = Path(__file__).parents[1] / "docs/examples/quickstart.yaml"
CONTEXT = 1024


def main() -> None:
    """Print both pairs as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each side, after one warm-up")
    rounds = parser.parse_args().rounds
    job = load(QUICKSTART.read_text())
    model = checkpoint(job.spec.model.checkpoint, cache_directory(os.environ))
    train = dataset(job.spec.data, load_tokenizer(model), CONTEXT).train
    prompts = tuple(train[row] for row in range(job.spec.rollout.prompts_per_step))
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as directory:
        rollouts = rollout.compare(job, model, prompts, rounds, threads, Path(directory))
    samples = training_samples(rollouts.groups)
    learners = learner.compare(model, samples, rounds, threads)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "sglang", "megatron-core", "ray"))
    lines = [
        f"{platform.machine()}, {threads} cores; Python {platform.python_version()}, {versions}",
        f"{len(prompts)} prompts x {job.spec.rollout.samples_per_prompt} samples; median of {rounds} rounds, in turns",
        "",
        "| pair | ours [tokens/s] | plain [tokens/s] | ours / plain |",
        "|---|---|---|---|",
        row("rollout / the engine alone", rollouts.ours, rollouts.plain),
        row("learner / plain PyTorch", learners.ours, learners.plain),
        "",
        f"loss of the first step: difference {learners.loss_difference:.1e}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def training_samples(groups: tuple[Group, ...]) -> list[TrainingSequence]:
    """Return every sample of a rollout with an advantage of one sign or the other, so that none is left out."""
    total = sum(len(sample.tokens_T) for group in groups for sample in group.samples_G)
    return [
        TrainingSequence(
            tokens=(*group.prompt.tokens_T, *sample.tokens_T),
            prompt_length=len(group.prompt.tokens_T),
            advantage=1.0 if number % 2 else -1.0,
            logprobs=sample.logprobs_T,
            weight=1.0 / total,
        )
        for group in groups
        for number, sample in enumerate(group.samples_G)
    ]


def row(name: str, ours: float, plain: float) -> str:
    """Return a line of the table."""
    return f"| {name} | {ours:.0f} | {plain:.0f} | {ours / plain:.2f} |"


if __name__ == "__main__":
    main()
