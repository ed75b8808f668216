"""The learner against the same model in plain PyTorch: one step on the same samples, in turns, in one process.

Plain PyTorch is what a careful person writes with transformers: padded batch, logits of the response tokens only,
fused AdamW, gradient clipping, equal micro-batches. Tokens are counted the same way for both: prompt and response of
every sample.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM

from rljob_api.sections import Optimizer
from rljob_trainer.batches.packing import Packing, pack
from rljob_trainer.batches.packing import TrainingSequence as Sample
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports

LEARNING_RATE = 2e-5
MICRO_BATCH = 16


@dataclass(frozen=True)
class Figures:
    """Medians over the rounds."""

    ours: float
    """[tokens/s]"""
    plain: float
    """[tokens/s]"""
    loss_difference: float
    """of the first step"""


def compare(checkpoint: Path, samples: Sequence[Sample], rounds: int, threads: int) -> Figures:
    """Return both rates, measured in turns after one warm-up each."""
    torch.set_num_threads(threads)
    config = LearnerConfig(
        checkpoint_dir=checkpoint,
        optimizer=Optimizer(learning_rate=LEARNING_RATE),
        total_steps=1000,
        num_threads=threads,
    )
    host = "127.0.0.1"
    learner = LearnerRank(config, rank=0, world_size=1, master_address=host, master_port=free_ports(host)[0])
    (batches,) = pack(samples, Packing(data_parallel=1, max_tokens=8192))
    plain = plain_step(checkpoint, samples)
    differences, ours, theirs = [], [], []
    for _ in range(rounds + 1):
        our_loss, our_seconds = timed(lambda: learner.train(batches).loss or 0.0)
        their_loss, their_seconds = timed(plain)
        differences.append(abs(our_loss - their_loss))
        ours.append(our_seconds)
        theirs.append(their_seconds)
    learner.close()
    tokens = sum(len(sample.tokens) for sample in samples)
    return Figures(tokens / median(ours[1:]), tokens / median(theirs[1:]), differences[0])


def plain_step(checkpoint: Path, samples: Sequence[Sample]) -> Callable[[], float]:
    """Return a function that takes one optimizer step with transformers and returns the loss."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    ordered = sorted(samples, key=lambda sample: len(sample.tokens))
    chunks = [ordered[start : start + MICRO_BATCH] for start in range(0, len(ordered), MICRO_BATCH)]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for chunk in chunks:
            loss = plain_loss(model, chunk)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return step


def plain_loss(model: torch.nn.Module, chunk: Sequence[Sample]) -> torch.Tensor:
    """Return the on-policy surrogate of a padded micro-batch: minus advantage, with the ratio's gradient."""
    longest = max(len(sample.tokens) for sample in chunk)
    tokens = torch.tensor([[*sample.tokens, *[0] * (longest - len(sample.tokens))] for sample in chunk])
    hidden = model.model(input_ids=tokens).last_hidden_state
    rows = [row for row, sample in enumerate(chunk) for _ in sample.logprobs]
    columns = [column for sample in chunk for column in range(sample.prompt_length - 1, len(sample.tokens) - 1)]
    logits = model.lm_head(hidden[rows, columns])
    targets = tokens[rows, [column + 1 for column in columns]]
    logprobs = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    weights = torch.tensor([sample.weight * sample.advantage for sample in chunk for _ in sample.logprobs])
    return -(weights * torch.exp(logprobs - logprobs.detach())).sum()


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """Return the result and the seconds it took."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began
