"""Weights from a checkpoint of a run to a Hugging Face directory, and back; one process, on CPU, without optimizer.

    checkpoints/iter_0000010 ─► hugging_face() ─► TARGET/{config.json, tokenizer, model.safetensors}
    Hugging Face directory   ─► megatron()     ─► TARGET/iter_0000000 {distributed checkpoint, rljob.json}

What was written is read again before it gets its name, and compared both ways, bit by bit: each tensor of the files
with what the checkpoint exports, and each parameter that the files give with the checkpoint's.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import SafetensorError, safe_open

from rljob_api.sections import Optimizer
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.tensors import is_trained
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.checkpoint import checkpoint
from rljob_trainer.learners.rank.experts.experts import held
from rljob_trainer.learners.rank.model.model import PolicyModel, build_chunks
from rljob_trainer.learners.rank.replacements import wgrad
from rljob_trainer.learners.rank.replacements.cpu import megatron_on_cpu
from rljob_trainer.learners.rank.weights import export
from rljob_trainer.learners.rank.weights.bridges import bridge
from rljob_trainer.learners.rank.weights.weight_files import (
    DTYPES,
    NOT_LOADED,
    further_tensors,
    is_further,
    weight_files,
)
from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.checkpoints import (
    MANIFEST,
    TRACKER,
    Checkpoint,
    checked,
    digests_of,
    model_fingerprint,
    name_of,
    sealed,
)
from rljob_trainer.text import some

MOST_TOLD = 5
"""tensors that a message names"""


class ConversionError(ValueError):
    """Nothing was converted, or not rightly; the text says what, and nothing of it has got its name."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What has been written, and verified."""

    path: Path
    tensors: int
    size: int
    """of all tensors [bytes]"""
    precision: str
    left_out: tuple[str, ...]
    """tensors of the Hugging Face files that a checkpoint does not hold, because they follow from others"""
    untrained: int = 0
    """how many tensors of them it does not hold, because they are of layers that no learner has"""


def hugging_face(source: Path, original: Path, target: Path) -> Converted:
    """Write the weights of a run's checkpoint into `target`, with all else from the `original` that the run began with.

    Raises CheckpointError, if the checkpoint is damaged, ConversionError, or UnsupportedModelError.
    """
    saved = checked(source)
    if saved.model != (found := model_fingerprint(original)):
        raise ConversionError(
            f"{source}: training began with a model of fingerprint {saved.model}, and {original} has {found}; "
            "give the directory that spec.model.checkpoint named"
        )
    with _draft(target) as draft, _models(original, saved.precision) as models:
        trained = models.from_checkpoint(source)
        further = dict(further_tensors(original, models.shape))
        export.write(draft, chain(models.export(trained), further.items()), original)
        done = _verified(models, trained, draft, saved.precision, further)
    return _moved(done, target)


def megatron(source: Path, target: Path) -> Converted:
    """Write the weights of a Hugging Face directory as a checkpoint of step 0 into `target`/iter_0000000.

    Raises ConversionError or UnsupportedModelError.
    """
    precision = _precision(source)
    with _draft(target) as draft, _models(source, precision) as models:
        directory = draft / name_of(0)
        directory.mkdir()
        checkpoint.save_weights(directory, models.from_files(source))
        manifest = Checkpoint(
            step=0,
            prompts=(0, 0),
            data_fingerprint="",
            layout=str(ALONE),
            model=model_fingerprint(source),
            precision=precision,
            files=digests_of(directory),
        )
        write_atomically(directory / MANIFEST, sealed(manifest))
        write_atomically(draft / TRACKER, b"0")
        checked(directory)
        done = _verified(models, models.from_checkpoint(directory), source, precision, {})
    return _moved(done, target)


ALONE = ParallelLayout()


class _Models:
    """Makes models of one architecture, in this process."""

    def __init__(self, original: Path, precision: str) -> None:
        config = LearnerConfig(
            checkpoint_dir=original,
            optimizer=Optimizer(learning_rate=1.0),  # which is not made here
            total_steps=1,
            precision="bf16" if precision == "bf16" else "fp32",
        )
        self._bridge = bridge(config)
        self.shape = self._bridge.shape

    def from_files(self, directory: Path) -> Any:
        (model,) = build_chunks(self._bridge, PolicyModel)
        self._bridge.load_weights([model], str(directory))
        return model

    def from_checkpoint(self, directory: Path) -> Any:
        (model,) = build_chunks(self._bridge, PolicyModel)
        checkpoint.load_weights(directory, model)
        return model

    def export(self, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self._bridge.export([model])


@contextmanager
def _models(original: Path, precision: str) -> Iterator[_Models]:
    """Let Megatron be one rank of one, in this process."""
    wgrad.install()
    with megatron_on_cpu(), torch.no_grad():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            parallel_state.initialize_model_parallel()
            yield _Models(original, precision)
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield a directory beside the target; it goes when something fails."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConversionError(f"{target}: is there already, and not an empty directory; nothing is overwritten")
    draft = target.with_name(f"{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft)
        raise


def _moved(done: Converted, target: Path) -> Converted:
    draft = target.with_name(f"{target.name}.draft")
    if target.exists():
        target.rmdir()
    draft.rename(target)
    return replace(done, path=target)


def _precision(source: Path) -> str:
    """Return the precision of a Hugging Face directory's weights, which must be one that is kept as it is."""
    trained = (tensor for name, tensor in _tensors(source) if is_trained(name))
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in trained})
    for precision, dtype in DTYPES.items():
        if dtypes == [str(dtype).removeprefix("torch.")]:
            return precision
    raise ConversionError(
        f"{source}: weights of {', '.join(dtypes) or 'no type'}; all float32 or all bfloat16 is expected"
    )


def _tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in weight_files(directory):
        try:
            with safe_open(path, "pt") as file:
                names = [name for name in file.keys() if not name.endswith(NOT_LOADED)]  # noqa: SIM118  # no mapping
                yield from ((name, file.get_tensor(name)) for name in names)
        except SafetensorError as error:
            raise ConversionError(f"{path}: {error}") from error


def _verified(
    models: _Models, model: Any, files: Path, precision: str, further: Mapping[str, torch.Tensor]
) -> Converted:
    """Compare the model of a checkpoint with Hugging Face files, both ways; `further` tensors are in the files alone.

    Raises ConversionError.
    """
    exported = {**dict(models.export(model)), **further}
    found = dict(_tensors(files))
    more = sorted(found.keys() - exported.keys())
    left_out = tuple(name for name in more if models.shape.tied and name == "lm_head.weight")
    untrained = tuple(name for name in more if is_further(name, models.shape))
    faults = [
        *_differences(exported, {name: found[name] for name in found if name not in (*left_out, *untrained)}),
        *_differences(dict(held(model)), dict(held(models.from_files(files)))),
    ]
    if faults:
        raise ConversionError(f"{files}: not the same as the checkpoint: {some(faults, MOST_TOLD, '; ')}")
    size = sum(tensor.nbytes for tensor in exported.values())
    return Converted(files, len(exported), size, precision, left_out, len(untrained))


def _differences(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield what is not the same in two sets of tensors: a bit, a shape, a type, a name."""
    for name in sorted(one.keys() | other.keys()):
        first, second = one.get(name), other.get(name)
        if first is None or second is None:
            yield f"{name} is missing on one side"
        elif (first.dtype, first.shape) != (second.dtype, second.shape):
            yield f"{name} is {_kind(first)} and {_kind(second)}"
        elif not torch.equal(_bits(first), _bits(second)):
            number = int((_bits(first) != _bits(second)).any(-1).sum())
            yield f"{name} differs in {number} rows"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor by its rows: numbers that are not finite, and zeros, have several."""
    rows = tensor.detach().reshape(len(tensor), -1) if tensor.dim() else tensor.detach().reshape(1, 1)
    return rows.contiguous().view(torch.uint8)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
