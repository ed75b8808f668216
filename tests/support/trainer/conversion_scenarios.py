"""What a process of its own does in the tests of `rljob convert`: Megatron's groups are of a process."""

import os
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rljob_cli.main import app
from rljob_trainer.learners.rank import conversion


def convert_there_and_back(rank: int, world_size: int, port: int, source: Path, directory: Path) -> list[Any]:
    """Convert a Hugging Face directory to a checkpoint, and that to a Hugging Face directory."""
    there = conversion.megatron(source, directory / "megatron")
    return [there, conversion.hugging_face(there.path / "iter_0000000", source, directory / "hf")]


def convert_each_there_and_back(rank: int, world_size: int, port: int, sources: list[Path]) -> list[list[Any]]:
    """Convert each Hugging Face directory there and back, with the results beside it."""
    return [
        convert_there_and_back(rank, world_size, port, each, each.with_name(f"{each.name}-there")) for each in sources
    ]


def convert(rank: int, world_size: int, port: int, source: Path, original: Path, target: Path) -> Any:
    return conversion.hugging_face(source, original, target)


def verb(rank: int, world_size: int, port: int, directory: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code of `rljob convert` in a directory, and what it writes to standard error."""
    os.chdir(directory)
    done = CliRunner().invoke(app, ["convert", *arguments])
    return done.exit_code, done.stderr


def convert_wrongly(
    rank: int, world_size: int, port: int, source: Path, directory: Path, wrong: str
) -> tuple[str, str]:
    """Convert with a fault on the way, in each direction; return what is said of it."""

    def swapped(tensors: Any) -> Any:
        for name, tensor in tensors:
            yield name, tensor.flip(0) if name == wrong else tensor

    messages = []
    right = conversion.megatron(source, directory / "right").path / "iter_0000000"
    export = conversion._Models.export
    conversion._Models.export = lambda models, model: swapped(export(models, model))
    for convert in (
        lambda: conversion.megatron(source, directory / "megatron"),
        lambda: conversion.hugging_face(right, source, directory / "hf"),
    ):
        try:
            convert()
        except conversion.ConversionError as error:
            messages.append(str(error))
    return tuple(messages)
