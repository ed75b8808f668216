"""Whether parameters that tensor ranks hold whole stay equal on four GPUs, with and without averaged gradients.

    python3 benchmarks/replicas_gpu.py --out runs/bench-gpu
    python3 benchmarks/replicas_gpu.py --device cpu --tiny

Tensor parallel 2, data parallel 2, bf16, a learning rate of 1e-3 and other samples in each step. For each way it prints
when the first parameter differed, which did in the end, and what the averages cost in a step. The first line says how
often the sum of the gradients of a prompt's last token, from eight samples, is another one for the same input.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import learner_gpu
import numpy as np
import torch

from rljob_api.sections import Optimizer
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.optimizer import optimizer
from rljob_trainer.learners.rank.optimizer.replicas import unequal_copies
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports

Json = dict[str, Any]

HOST = "127.0.0.1"
STEPS = 40
GROUPS, SAMPLES = 8, 8
WAYS = ("summed alone", "averaged")
SHAPE: Json = learner_gpu.SHAPES["0.6B"] | {"num_hidden_layers": 8}


def samples(step: int, vocabulary: int, scale: int) -> list[TrainingSequence]:
    """Return random samples of a step; eight of them have one prompt, so its last token has eight gradients to add."""
    rng = np.random.default_rng(step)
    responses = rng.lognormal(5.5, 0.7, GROUPS * SAMPLES).clip(32, 1024).astype(int) // scale + 8
    total, found = int(responses.sum()), []
    for length, number in zip(responses.tolist(), range(len(responses)), strict=True):
        prompt = np.random.default_rng([step, number // SAMPLES]).integers(0, vocabulary, 64).tolist()
        tokens = (*prompt, *rng.integers(0, vocabulary, length).tolist())
        logprobs = tuple((-12 + rng.standard_normal(length)).tolist())
        found.append(TrainingSequence(tokens, len(prompt), float(rng.standard_normal()), logprobs, 1 / total))
    return found


def rank(arguments: argparse.Namespace) -> None:
    """Take the steps as one rank; print what was seen."""
    shape = learner_gpu.TINY if arguments.tiny else SHAPE
    if arguments.way != WAYS.index("averaged"):
        patch.object(optimizer, "average_gradients", lambda _: None).start()  # this process measures nothing else
    config = LearnerConfig(
        checkpoint_dir=arguments.out / "model-replicas",
        optimizer=Optimizer(learning_rate=1e-3),
        total_steps=1000,
        precision="bf16",
        device=arguments.device,
        num_threads=2,
        timeout_s=120.0,
        layout=ParallelLayout(tensor=2),
    )
    learner = LearnerRank(config, arguments.rank, 4, HOST, arguments.port)
    first, names, seconds = None, [], []
    for step in range(STEPS):
        given = samples(step, shape["vocab_size"], 64 if arguments.tiny else 1)
        packed = pack(
            given,
            Packing(data_parallel=2, max_tokens=learner_gpu.MICRO_BATCH_TOKENS, in_step=learner.layout.data_ranks_meet),
        )
        own = packed[learner.layout.data_rank(arguments.rank)]
        usual, _ = learner_gpu.timed(partial(learner.train, own), 1, arguments.device == "cuda")
        seconds.append(usual)
        names = [copy.parameter for copy in unequal_copies(learner._ddp)]
        if names and first is None:
            first = step + 1
    found = {"first step": first, "differing": names}
    print(json.dumps(found | {"ms": 1000 * median(seconds)}), flush=True)
    learner.close()


def measure(arguments: argparse.Namespace, way: int) -> Json:
    """Start the ranks; return what the first one prints, with what others saw. Raises CalledProcessError."""
    port = free_ports(HOST)[0]
    command = [sys.executable, __file__, "--out", str(arguments.out), "--device", arguments.device]
    command += ["--port", str(port), "--way", str(way), *(["--tiny"] if arguments.tiny else []), "--rank"]
    ranks = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for number in range(4)
    ]
    try:
        outputs = [each.communicate(timeout=300)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    for each in ranks:
        if each.returncode:
            raise subprocess.CalledProcessError(each.returncode, command)
    first: Json = json.loads(outputs[0].splitlines()[-1])
    return first


def unstable(device: str) -> int:
    """Return how many of 50 backward passes of `index_select` that takes rows eight times give another gradient."""
    torch.manual_seed(0)
    hidden = torch.randn(1000, 1024, device=device, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.arange(1000, device=device).repeat(SAMPLES)
    gradient = torch.randn(len(rows), 1024, device=device, dtype=torch.bfloat16)
    seen = [torch.autograd.grad(hidden.index_select(0, rows), hidden, gradient)[0] for _ in range(50)]
    return sum(not torch.equal(each, seen[0]) for each in seen)


def main() -> None:
    """Measure both ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a few layers and short samples, to try the benchmark")
    for hidden in ("--way", "--rank", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank(arguments)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    print("other sums of the same gradients, of 50:", unstable(arguments.device), flush=True)
    shape = learner_gpu.TINY if arguments.tiny else SHAPE
    learner_gpu.write_checkpoint(arguments.out / "model-replicas", shape, arguments.device)
    for way, name in enumerate(WAYS):
        print(name, json.dumps(measure(arguments, way)), flush=True)


if __name__ == "__main__":
    main()
