"""A checkpoint's safetensors files against their index and against `config.json`. Only headers are read, no tensor.

A safetensors file is 8 bytes with the length of a JSON header, the header (name -> type, shape, where its bytes are)
and the bytes, https://github.com/huggingface/safetensors#format: so its size follows from its header.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.errors import ManifestError, Problem
from rljob_api.foreign_text import said
from rljob_api.sizing.model_shape import CHECKPOINT, quantised, shape
from rljob_api.sizing.tensors import tensors_of
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.preflight.model_files import small_text
from rljob_trainer.rundir.retries import judge_volume
from rljob_trainer.text import some

INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"
LONGEST_HEADER = 2**25
"""bytes; a file with 250,000 tensors has such a header, and reading it takes seconds"""
LARGEST_AXIS = 2**48
NAMED = 3
"""tensors that a message names"""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """What a file says of itself."""

    name: str
    size: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """tensor -> shape"""
    described: int = 0
    """bytes that the file must have by its header"""
    fault: str = ""
    """why the header cannot be read; empty: it can"""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the files of a checkpoint say."""

    config: Mapping[str, object]
    files: tuple[WeightFile, ...]
    index: Mapping[str, str] | None
    """tensor -> file; None: there is no index"""
    index_fault: str = ""


def read_weights(directory: Path, config: Mapping[str, object]) -> Weights:
    """Read the headers of all files and the index."""
    index, fault = read_index(directory / INDEX)
    return Weights(config, tuple(read_header(path) for path in sorted(directory.glob("*.safetensors"))), index, fault)


def read_index(path: Path) -> tuple[dict[str, str] | None, str]:
    if not path.is_file():
        return None, ""
    try:
        return {str(name): str(file) for name, file in json.loads(small_text(path))["weight_map"].items()}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        judge_volume(error)
        return None, f"has no readable weight_map: {said(error)}"


def read_header(path: Path) -> WeightFile:
    """Return what a file says of itself; one that cannot be read says why."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if (start + file.read(len(LFS_POINTER) - 8)) == LFS_POINTER:
            return WeightFile(
                path.name, size, fault="is a git-lfs pointer: the file itself was not fetched (git lfs pull)"
            )
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(LONGEST_HEADER, size - 8):
            return WeightFile(
                path.name, size, fault=f"is cut off or no safetensors file: its {size} bytes hold no whole header"
            )
        file.seek(8)
        header = file.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        shapes = {name: tuple(int(axis) for axis in entry["shape"]) for name, entry in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        if any(not 0 <= axis < LARGEST_AXIS for axes in shapes.values() for axis in axes):
            raise ValueError("an axis has no size that a file could hold")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        return WeightFile(path.name, size, fault=f"has a damaged header: {said(error)}")
    return WeightFile(path.name, size, shapes, 8 + length + end)


def judge_weights(found: Weights) -> Findings:
    """Return the problems of the weight files, without the consequences of a missing or damaged file."""
    if not found.files and not found.index and not found.index_fault:
        return Findings((Problem(CHECKPOINT, "*.safetensors", "is not there: the checkpoint has no weights"),))
    if problem := quantised(found.config):
        return Findings((problem,))
    if found.index_fault:
        return Findings((Problem(CHECKPOINT, INDEX, found.index_fault),))
    broken = tuple(damaged(found))
    if broken:
        return Findings(broken)
    return Findings((*absent(found), *against_config(found)), tuple(superfluous(found)))


def damaged(found: Weights) -> Iterator[Problem]:
    """Yield files that are missing, cut off or no safetensors files."""
    there = {file.name for file in found.files}
    listed = dict.fromkeys((found.index or {}).values())
    for name in listed:
        if name not in there:
            tensors = [tensor for tensor, file in (found.index or {}).items() if file == name]
            rule = f"is listed in {INDEX} and is not there; {named(tensors)} in it"
            yield Problem(CHECKPOINT, name, rule, "fetch it again")
    for file in found.files:
        if found.index is not None and file.name not in listed:
            continue
        if file.fault:
            yield Problem(CHECKPOINT, file.name, file.fault, "fetch it again")
        elif file.size != file.described:
            rule = f"has {file.size} bytes, and {file.described} by its own header: cut off or damaged"
            yield Problem(CHECKPOINT, file.name, rule, "fetch it again")


def absent(found: Weights) -> Iterator[Problem]:
    """Yield tensors that the index names and their file has not."""
    held = {file.name: file.shapes for file in found.files}
    for name in dict.fromkeys((found.index or {}).values()):
        lost = [tensor for tensor, file in (found.index or {}).items() if file == name and tensor not in held[name]]
        if lost:
            yield Problem(CHECKPOINT, name, f"has not what {INDEX} says is in it: {named(lost)} absent")


def superfluous(found: Weights) -> Iterator[Problem]:
    """Yield what is there and will not be read."""
    listed = set((found.index or {}).values())
    for file in found.files:
        if found.index is not None and file.name not in listed:
            yield Problem(CHECKPOINT, file.name, f"is not in {INDEX}, so it would not be read")
    if found.config.get("tie_word_embeddings") and "lm_head.weight" in shapes_of(found):
        rule = "is there, and config.json says tie_word_embeddings true: it is not read"
        yield Problem(CHECKPOINT, "lm_head.weight", rule, "tie_word_embeddings false, if the two differ")


def against_config(found: Weights) -> Iterator[Problem]:
    """Yield tensors that the model of `config.json` has and the files have not, or in another shape."""
    try:
        model = shape(found.config)
    except ManifestError:
        return  # reported when the manifest is checked against the model
    # Tensors that the index lists and a file lacks are reported already.
    there, promised = shapes_of(found), set(found.index or {})
    wanted = tensors_of(model)
    lost = [name for name in wanted if name not in there and name not in promised]
    if "lm_head.weight" in lost:
        lost.remove("lm_head.weight")
        rule = "is not there, and config.json says tie_word_embeddings false: the output layer would be random"
        yield Problem(
            CHECKPOINT, "lm_head.weight", rule, "tie_word_embeddings true, if the model shares its embeddings"
        )
    if lost:
        rule = f"describes {model.layers} layers, and the files lack {named(lost)}"
        yield Problem(CHECKPOINT, "config.json", rule)
    for name, axes in wanted.items():
        if name in there and there[name] != axes:
            rule = f"has the shape {list(there[name])}, and config.json makes it {list(axes)}"
            yield Problem(CHECKPOINT, name, rule)
            return  # one wrong size in config.json gives every layer another shape


def shapes_of(found: Weights) -> dict[str, tuple[int, ...]]:
    read = [file for file in found.files if found.index is None or file.name in set(found.index.values())]
    return {name: axes for file in read for name, axes in file.shapes.items()}


def named(tensors: list[str]) -> str:
    return f"{some(tensors, NAMED)} {'is' if len(tensors) == 1 else 'are'}"
