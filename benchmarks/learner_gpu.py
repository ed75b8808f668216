"""The learner's optimizer step on one GPU beside its rivals, for `docs/gpu-measurements.md`: `make bench-gpu`.

Each row runs in a process of its own, one after the other, with random weights of Qwen3's shapes and the same samples.
Rows that `OUT/learner.json` has already are not repeated, so an interrupted run goes on where it was; `OUT/learner.md`
has the table.

`ours` is the learner as it runs on GPUs; `without-...` leaves out one of its parts, `unfused` all of them. The rivals
have weights and optimizer in bf16, which is less work: `compiled` is `plain_model.py`, `transformers` what a careful
person writes with Hugging Face's model. MFU is `rljob_api.sizing.flops` x steps/s / peak: response tokens alone are
projected onto the vocabulary, and attention is causal.
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
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
import triton
from megatron.core.transformer.transformer_layer import TransformerLayer
from plain_model import compiled_step
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3Config, Qwen3MoeConfig

from rljob_api.sections import Optimizer
from rljob_api.sizing.families import FAMILIES
from rljob_api.sizing.flops import peak_flops, training_flops
from rljob_api.sizing.model_shape import read
from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.attention import flash
from rljob_trainer.learners.rank.head import logprobs
from rljob_trainer.learners.rank.head.fused_head import FusedHead
from rljob_trainer.learners.rank.model import model
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports

Json = dict[str, Any]
Step = Callable[[], float]

LEARNING_RATE = 1e-6
MICRO_BATCH_TOKENS = 16384
WARM_UP, MEASURED = 3, 8
QWEN3 = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}
SHAPES: dict[str, Json] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    | QWEN3,
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32} | QWEN3,
}
TINY: Json = QWEN3 | {
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
    shape: str = "0.6B"

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
    drawn = np.random.default_rng(1).lognormal(6.7, 0.7, 32).clip(64, 8192).astype(int)
    mixed = tuple(max(8, int(length) // scale) for length in drawn)
    return {"mixed": Load(mixed), "long": Load((8192 // scale,) * 4), "mixed-4B": Load(mixed, "4B")}


@dataclass(frozen=True)
class Case:
    """What a row is given."""

    checkpoint: Path
    shape: Json
    device: Literal["cpu", "cuda"]
    samples: Sequence[TrainingSequence]


def ours(case: Case) -> Step:
    """Return a step of the learner as it is."""
    host = "127.0.0.1"
    config = LearnerConfig(
        checkpoint_dir=case.checkpoint,
        optimizer=Optimizer(learning_rate=LEARNING_RATE),
        total_steps=1000,
        precision="bf16",
        device=case.device,
        num_threads=2,
    )
    learner = LearnerRank(config, rank=0, world_size=1, master_address=host, master_port=free_ports(host)[0])
    (batches,) = pack(case.samples, Packing(data_parallel=1, max_tokens=MICRO_BATCH_TOKENS))
    return lambda: learner.train(batches).loss or 0.0


def without_flash_4(case: Case) -> Step:
    """Return a step with FlashAttention 2 in all layers."""
    patch.object(flash, "has_flash_4", lambda: False).start()  # this process measures nothing else
    return ours(case)


def without_layer(case: Case) -> Step:
    """Return a step with Megatron's own layer around our attention: torch.compile's gate, PyTorch's norms."""
    layer_spec = model._layer_spec

    def spec(config: Any, family: Any, device: Any, **of: Any) -> Any:
        made = layer_spec(config, family, device, **of)
        made.module = TransformerLayer
        return made

    patch.object(model, "_layer_spec", spec).start()
    return ours(case)


def without_kept_logits(case: Case) -> Step:
    """Return a step that computes all logits again in the backward pass."""
    patch.object(FusedHead, "kept_share", 0.0).start()
    return ours(case)


def unfused(case: Case) -> Step:
    """Return a step of the learner with the layers and the output layer that it has on CPUs."""
    layer_spec = model._layer_spec
    patch.object(
        model, "_layer_spec", lambda config, family, _device, **of: layer_spec(config, family, "cpu", **of)
    ).start()
    patch.object(logprobs, "_head", lambda _hidden, _shard: logprobs._Head).start()
    return without_flash_4(case)


def compiled(case: Case) -> Step:
    """Return a step in plain PyTorch, compiled, over the same packed micro-batches."""
    (batches,) = pack(case.samples, Packing(data_parallel=1, max_tokens=MICRO_BATCH_TOKENS))
    return compiled_step(case.checkpoint, batches, case.shape["head_dim"], LEARNING_RATE, case.device)


def transformers(case: Case) -> Step:
    """Return a step with Hugging Face's model, in bf16 throughout."""
    device = case.device
    policy = AutoModelForCausalLM.from_pretrained(case.checkpoint, dtype=torch.bfloat16).to(device)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    chunks: list[list[TrainingSequence]] = [[]]
    for sample in sorted(case.samples, key=lambda sample: len(sample.tokens)):
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


ROWS: dict[str, Callable[[Case], Step]] = {
    "ours": ours,
    "without-flash-4": without_flash_4,
    "without-layer": without_layer,
    "without-kept-logits": without_kept_logits,
    "unfused": unfused,
    "compiled": compiled,
    "transformers": transformers,
}


def timed(step: Callable[[], object], measured: int, on_gpu: bool) -> tuple[float, float]:
    """Return the median seconds of so many steps after those that warm up, and (largest - smallest) / median."""
    seconds = []
    for _ in range(WARM_UP + measured):
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    counted = seconds[WARM_UP:]
    usual = median(counted)
    return usual, (max(counted) - min(counted)) / usual


def measure(row: str, load: Load, case: Case) -> Json:
    """Return the figures of one row, in this process."""
    step = ROWS[row](case)
    on_gpu = case.device == "cuda"
    step()
    usual, spread = timed(step, MEASURED, on_gpu)
    peak = peak_flops(torch.cuda.get_device_name()) if on_gpu else None
    return {
        "ms": 1000 * usual,
        "spread": spread,
        "tokens per second": sum(load.lengths) / usual,
        "MFU": flops(load, case.shape) / usual / peak if peak else None,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "card": torch.cuda.get_device_name() if on_gpu else "CPU",
        "versions": {each.__name__: each.__version__ for each in (torch, triton, np)},
    }


def flops(load: Load, shape: Json) -> int:
    """Return the FLOPs of one step; no two samples share a beginning."""
    tokens = sum(load.lengths)
    responses = sum(length - length // 4 for length in load.lengths)
    pairs = sum(length * (length + 1) // 2 for length in load.lengths)
    return training_flops(read(shape, FAMILIES["Qwen3ForCausalLM"]), tokens, responses, pairs)


def write_checkpoint(directory: Path, shape: Json, device: str) -> None:
    """Write random weights of Qwen3's or Qwen3-MoE's shape, once."""
    write_random(directory, Qwen3MoeConfig(**shape) if "num_experts" in shape else Qwen3Config(**shape), device)


def write_random(directory: Path, config: PreTrainedConfig, device: str) -> None:
    """Write random weights of a model, once."""
    if not (directory / "model.safetensors").exists():
        torch.manual_seed(0)
        with torch.device(device):
            policy = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        policy.save_pretrained(directory, max_shard_size="50GB")


def table(figures: Json) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| load | row | ms | spread | tokens/s | MFU | peak GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in figures.items():
        cells = [
            *name.split("/"),
            f"{row['ms']:.1f}",
            f"{row['spread']:.1%}",
            f"{row['tokens per second']:,.0f}",
            "" if row["MFU"] is None else f"{row['MFU']:.1%}",
            "" if row["peak GiB"] is None else f"{row['peak GiB']:.1f}",
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
        name, row = arguments.only.split("/")
        print(json.dumps(measure(row, known[name], _case(arguments, known[name]))))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / "learner.json"
    figures = json.loads(results.read_text()) if results.exists() else {}
    for load, row in itertools.product(arguments.loads, arguments.rows):
        name = f"{load}/{row}"
        if name not in figures:
            command = [sys.executable, *sys.argv, "--only", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=_environment())
            if done.returncode:  # such as out of memory: the other rows are still worth having
                print(f"{name}: exit code {done.returncode}", file=sys.stderr)
                continue
            figures[name] = json.loads(done.stdout.splitlines()[-1])
            results.write_text(json.dumps(figures, indent=2))
    (arguments.out / "learner.md").write_text(table(figures) + "\n")
    print(table(figures))


def _case(arguments: argparse.Namespace, load: Load) -> Case:
    shape = TINY if arguments.tiny else SHAPES[load.shape]
    checkpoint = arguments.out / f"model-{load.shape}"
    write_checkpoint(checkpoint, shape, arguments.device)
    return Case(checkpoint, shape, arguments.device, load.samples(shape["vocab_size"]))


def _environment() -> dict[str, str]:
    """Let a row use expandable segments: lengths differ from micro-batch to micro-batch."""
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ}


if __name__ == "__main__":
    main()
