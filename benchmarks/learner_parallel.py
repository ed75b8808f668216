"""The learner's optimizer step on two and four GPUs in each layout, beside one GPU, for `docs/gpu-measurements.md`.

    python3 benchmarks/learner_parallel.py --out runs/bench-gpu --rows one data-2 tensor-2
    python3 benchmarks/learner_parallel.py --device cpu --tiny

All rows of a model train on the same samples from the same random weights, so their losses and gradient norms must be
equal up to rounding. A checkpoint is then written into /dev/shm. Each row's ranks are processes of their own. A row
that has a file in OUT is not repeated.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import learner_gpu
import torch

from rljob_api.sections import Optimizer
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.model import model
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.metrics import OptimizerStep
from rljob_trainer.processes.ports import free_ports

Json = dict[str, Any]

HOST = "127.0.0.1"
MEASURED = 6
EXPERTS: Json = learner_gpu.QWEN3 | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
"""1.2 billion weights, of which 0.4 take part in a token"""
TINY: Json = learner_gpu.TINY | {"num_hidden_layers": 4}
"""enough for two chunks in each of two pipeline stages"""
TINY_EXPERTS: Json = learner_gpu.TINY | {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Row:
    """A layout."""

    ranks: int
    model: str = "0.6B"
    layout: Mapping[str, Any] = field(default_factory=dict)
    """fields of LearnerConfig"""
    load: str = "mixed"
    """of `learner_gpu.loads`"""
    grouped: bool = True
    """the experts of a rank in one product, not one after the other"""


ROWS: Mapping[str, Row] = {
    "one": Row(1),
    "data-2": Row(2),
    "tensor-2": Row(2, layout={"tensor": 2}),
    "sequence-2": Row(2, layout={"tensor": 2, "sequence": True}),
    "pipeline-2": Row(2, layout={"pipeline": 2}),
    "virtual-2": Row(2, layout={"pipeline": 2, "virtual": 2}),
    "context-2": Row(2, layout={"context": 2}),
    "context-4": Row(4, layout={"context": 4}),
    "long-one": Row(1, load="long"),
    "long-context-2": Row(2, layout={"context": 2}, load="long"),
    "long-context-4": Row(4, layout={"context": 4}, load="long"),
    "experts-in-turn": Row(1, "experts", grouped=False),
    "experts-one": Row(1, "experts"),
    "experts-data-2": Row(2, "experts"),
    "experts-expert-2": Row(2, "experts", {"expert": 2}),
    "experts-expert-4": Row(4, "experts", {"expert": 4}),
    "experts-tensor-2": Row(2, "experts", {"tensor": 2, "expert_tensor": 2}),
    "4B-tensor-2": Row(2, "4B", {"tensor": 2}),
}


def write_model(arguments: argparse.Namespace, name: str) -> tuple[Path, Json]:
    """Return a checkpoint of random weights, and its shape."""
    directory: Path = arguments.out / f"model-{name}"
    if name == "experts":
        shape = TINY_EXPERTS if arguments.tiny else EXPERTS
    else:
        shape = TINY if arguments.tiny else learner_gpu.SHAPES[name]
    learner_gpu.write_checkpoint(directory, shape, arguments.device)
    return directory, shape


def samples(arguments: argparse.Namespace, row: Row, shape: Json) -> list[TrainingSequence]:
    """Return the samples of a step, the same for all rows of a model and a load."""
    return learner_gpu.loads(64 if arguments.tiny else 1)[row.load].samples(shape["vocab_size"])


def rank(arguments: argparse.Namespace, row: Row) -> None:
    """Take the steps as one rank; print what they came to."""
    checkpoint, shape = write_model(arguments, row.model)
    if not row.grouped:
        patch.object(model, "can_group", lambda _config: False).start()  # this process measures nothing else
    config = LearnerConfig(
        checkpoint_dir=checkpoint,
        optimizer=Optimizer(learning_rate=learner_gpu.LEARNING_RATE),
        total_steps=1000,
        precision="bf16",
        device=arguments.device,
        num_threads=2,
        timeout_s=120.0,
        layout=ParallelLayout(**row.layout),
    )
    learner = LearnerRank(config, arguments.rank, row.ranks, HOST, arguments.port)
    layout = learner.layout
    given = samples(arguments, row, shape)
    packed = pack(
        given,
        Packing(
            data_parallel=layout.data,
            max_tokens=learner_gpu.MICRO_BATCH_TOKENS,
            in_step=layout.data_ranks_meet,
            multiple=layout.micro_batch_multiple,
        ),
    )
    own = packed[layout.data_rank(arguments.rank)]
    steps: list[OptimizerStep] = []
    usual, spread = learner_gpu.timed(lambda: steps.append(learner.train(own)), MEASURED, arguments.device == "cuda")
    saved = save(learner, arguments) if arguments.checkpoint else None
    found: Json = {"peak GiB": torch.cuda.max_memory_allocated() / 2**30 if arguments.device == "cuda" else None}
    if arguments.rank == 0:
        found |= {
            "ms": 1000 * usual,
            "spread": spread,
            "tokens per second": sum(len(each.tokens) for each in given) / usual,
            "loss": [each.loss for each in steps[:3]],
            "gradient norm": [each.grad_norm for each in steps[:3]],
            "checkpoint s": saved,
            "card": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU",
        }
    print(json.dumps(found), flush=True)
    learner.close()


def save(learner: LearnerRank, arguments: argparse.Namespace) -> float:
    """Return how long a checkpoint keeps the training waiting, in seconds."""
    directory = Path("/dev/shm") / f"learner-parallel-{arguments.port}"
    directory.mkdir(exist_ok=True)
    began = time.perf_counter()
    learner.stage(directory)
    saved = time.perf_counter() - began
    if arguments.rank == 0:
        shutil.rmtree(directory)
    return saved


def measure(arguments: argparse.Namespace, name: str) -> Json:
    """Start the ranks of a row; return what the first one prints, with the peaks of all. Raises CalledProcessError."""
    port = free_ports(HOST)[0]
    write_model(arguments, ROWS[name].model)
    command = [sys.executable, __file__, "--out", str(arguments.out), "--device", arguments.device, "--rank-of", name]
    command += ["--port", str(port), *(["--tiny"] if arguments.tiny else [])]
    command += [*([] if arguments.checkpoint else ["--no-checkpoint"]), "--rank"]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ}
    ranks = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, env=environment)
        for number in range(ROWS[name].ranks)
    ]
    try:
        outputs = [each.communicate(timeout=240)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    for each in ranks:
        if each.returncode:
            raise subprocess.CalledProcessError(each.returncode, command)
    found: list[Json] = [json.loads(each.splitlines()[-1]) for each in outputs]
    return found[0] | {"peak GiB": [each["peak GiB"] for each in found]}


def possible() -> list[str]:
    """Return the rows that have a GPU for each rank; all of them without CUDA."""
    gpus = torch.cuda.device_count()
    return [name for name, row in ROWS.items() if not gpus or row.ranks <= gpus]


def main() -> None:
    """Measure what is missing, and print all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gpu"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=possible())
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a few layers and short samples, to try the benchmark")
    parser.add_argument(
        "--checkpoint", action=argparse.BooleanOptionalAction, default=True, help="write one at the end"
    )
    for hidden in ("--rank-of", "--rank", "--port"):
        parser.add_argument(hidden, type=int if hidden != "--rank-of" else str, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        rank(arguments, ROWS[arguments.rank_of])
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.rows:
        result = arguments.out / f"parallel-{name}.json"
        if not result.exists():
            try:
                result.write_text(json.dumps(measure(arguments, name), indent=1))
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"{name}: {error}", file=sys.stderr)  # the other rows are still worth having
                continue
        print(name, result.read_text(), flush=True)


if __name__ == "__main__":
    main()
