"""How long a checkpoint keeps the training waiting, beside PyTorch's own ways to save the same tensors, in one run.

    PYTHONPATH=crds:trainer:benchmarks python3 benchmarks/saves.py --model 0.6B            # on a GPU
    PYTHONPATH=crds:trainer:benchmarks python3 benchmarks/saves.py --device cpu --tiny

    rljob             the state is copied to the host; a thread of the rank writes it
    torch             `torch.distributed.checkpoint.save`
    torch, async      `torch.distributed.checkpoint.async_save`, by a thread of the rank

One rank, so nothing is gathered. Rows take turns; the first round, in which pinned memory is allocated, is a row of its
own. *stands still* is until the next step may begin, *complete* until the files are on the disk.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import learner_gpu
import torch
import torch.distributed.checkpoint as torch_checkpoint

from rljob_api.sections import Optimizer
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.optimizer.optimizer import optimizer_tensors
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports

ROUNDS = 4
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Saved:
    """Times of one save [s]."""

    stands_still: float
    complete: float


def rljob(learner: LearnerRank, directory: Path) -> Saved:
    """Save as a run does."""
    began = time.perf_counter()
    learner.stage(directory)
    staged = time.perf_counter()
    learner.finish_save([learner.write_staged()])
    return Saved(staged - began, time.perf_counter() - began)


def tensors(learner: LearnerRank) -> dict[str, torch.Tensor]:
    """Return weights, masters and moments: what a checkpoint of rljob has."""
    weights = {name: weight.detach() for chunk in learner._chunks for name, weight in chunk.named_parameters()}
    return weights | {f"state-{index}": each for index, each in enumerate(optimizer_tensors(learner._optimizer))}


def by_torch(learner: LearnerRank, directory: Path) -> Saved:
    """Save in place."""
    began = time.perf_counter()
    torch_checkpoint.save(tensors(learner), checkpoint_id=str(directory))
    took = time.perf_counter() - began
    return Saved(took, took)


def by_torch_async(learner: LearnerRank, directory: Path) -> Saved:
    """Save from a copy that PyTorch makes."""
    began = time.perf_counter()
    writing: Any = torch_checkpoint.async_save(tensors(learner), checkpoint_id=str(directory))
    staged = time.perf_counter()
    writing.result()
    return Saved(staged - began, time.perf_counter() - began)


ROWS: dict[str, Callable[[LearnerRank, Path], Saved]] = {
    "rljob": rljob,
    "torch": by_torch,
    "torch, async": by_torch_async,
}


def main() -> None:
    """Print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-saves"))
    parser.add_argument("--disk", type=Path, help="where checkpoints are written (default: OUT)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--model", choices=[*learner_gpu.SHAPES], default="0.6B")
    parser.add_argument("--tiny", action="store_true", help="a model of some megabytes")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    arguments = parser.parse_args()
    shape = learner_gpu.TINY if arguments.tiny else learner_gpu.SHAPES[arguments.model]
    if arguments.layers:
        shape = {**shape, "num_hidden_layers": arguments.layers}
    model = arguments.out / "model"
    learner_gpu.write_checkpoint(model, shape, arguments.device)
    config = LearnerConfig(model, Optimizer(learning_rate=1e-6), 100, precision="bf16", device=arguments.device)
    learner = LearnerRank(config, 0, 1, HOST, free_ports(HOST)[0])
    found: dict[str, list[Saved]] = {name: [] for name in ROWS}
    for _ in range(ROUNDS):
        for name, save in ROWS.items():
            directory = (arguments.disk or arguments.out) / "checkpoint"
            directory.mkdir(parents=True)
            found[name].append(save(learner, directory))
            size = sum(file.stat().st_size for file in directory.iterdir())
            shutil.rmtree(directory)
            print(f"{name}: {found[name][-1]} {size / 1e9:.2f} GB", flush=True)
    print("\n|  | first: stands still s | stands still s | complete s |\n|---|---|---|---|")
    for name, saves in found.items():
        still, complete = (
            statistics.median(getattr(each, of) for each in saves[1:]) for of in ("stands_still", "complete")
        )
        print(f"| {name} | {saves[0].stands_still:.3f} | {still:.3f} | {complete:.3f} |")
    print(json.dumps({name: [asdict(each) for each in saves] for name, saves in found.items()}))
    learner.close()


if __name__ == "__main__":
    main()
